#include "cli/io/safetensors.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cmath>
#include <limits>

#include "core/random.h"
#include "harness/buffers.h"
#include "tests/cli/test_files.h"

namespace tilewise::cli {
namespace {

constexpr const char* kGood =
    R"({"__metadata__":{"a":"b"},"x.q":{"dtype":"F16","shape":[1,2,1,3],"data_offsets":[0,12]},)"
    R"("n":{"dtype":"I64","shape":[1],"data_offsets":[12,20]}})";

TEST(SafetensorsHeader, ReadsNamesTypesShapesAndMetadata) {
  const Result<SafetensorsHeader> header = parse_safetensors_header(kGood, 20);
  ASSERT_TRUE(header.ok()) << header.status().message();
  ASSERT_EQ(header->tensors.size(), 2u);
  const TensorEntry* q = header->find("x.q");
  ASSERT_NE(q, nullptr);
  EXPECT_EQ(q->type, ElementType::kF16);
  EXPECT_EQ(q->shape, (std::vector<int64_t>{1, 2, 1, 3}));
  EXPECT_EQ(q->end, 12u);
  EXPECT_EQ(header->metadata.at("a"), "b");
  EXPECT_EQ(header->find("q"), nullptr);
}

struct HeaderCase {
  const char* name;
  std::string json;
  uint64_t data_bytes;
  const char* message;  // part of it; empty: the header is fine
};

// One tensor "t" with these fields.
std::string tensor(const std::string& fields) { return "{\"t\":{" + fields + "}}"; }
std::string f32(const std::string& shape, const std::string& offsets) {
  return tensor("\"dtype\":\"F32\",\"shape\":" + shape + ",\"data_offsets\":" + offsets);
}

const HeaderCase kHeaderCases[] = {
    {"no tensors", "{}", 0, ""},
    {"metadata alone", R"({"__metadata__":{}})", 0, ""},
    {"trailing spaces", "{}      ", 0, ""},
    {"a scalar", f32("[]", "[0,4]"), 4, ""},
    {"an empty tensor", f32("[3,0]", "[0,0]"), 0, ""},
    {"escaped name", R"({"\u0071":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})", 1, ""},
    {"fields in another order", tensor(R"("data_offsets":[0,4],"shape":[1],"dtype":"F32")"), 4, ""},

    {"empty", "", 0, "not a safetensors file"},
    {"an array", "[]", 0, "not a safetensors file"},
    {"leading space", " {}", 0, "not a safetensors file"},
    {"cut short", R"({"t":{"dtype":"F3)", 0, "not JSON"},
    {"text after the object", "{} {}", 0, "not JSON"},
    {"zero byte after the object", std::string("{}\0", 3), 0, "not JSON"},
    {"not UTF-8 in a name", "{\"\xff\xfe\":{}}", 0, "not JSON in UTF-8"},
    {"overlong UTF-8", "{\"\xc0\xaf\":{}}", 0, "not JSON in UTF-8"},
    {"lone surrogate", R"({"\ud800":{}})", 0, "not JSON in UTF-8"},
    {"comment", "{/*x*/}", 0, "not JSON"},
    {"tensor is a number", R"({"t":3})", 0, "tensor \"t\" is 3, expected an object"},
    {"tensor is null", R"({"t":null})", 0, "tensor \"t\" is null"},
    {"tensor is an array", R"({"t":[1]})", 0, "tensor \"t\" is an array"},
    {"tensor is a string", R"({"t":"x"})", 0, "tensor \"t\" is \"x\""},
    {"metadata is a string", R"({"__metadata__":"x"})", 0, "__metadata__"},
    {"metadata value is a number", R"({"__metadata__":{"a":1}})", 0,
     "\"a\" is 1, expected a string"},
    {"metadata value is an object", R"({"__metadata__":{"a":{}}})", 0, "\"a\" is an object"},
    {"metadata key twice", R"({"__metadata__":{"a":"x","a":"y"}})", 0, "\"a\" is given twice"},
    {"metadata twice", R"({"__metadata__":{},"__metadata__":{}})", 0, "given twice"},
    {"name twice",
     R"({"t":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"t":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}})",
     2, "tensor \"t\": the name is given twice"},
    {"dtype twice", tensor(R"("dtype":"F32","dtype":"F16")"), 0, "dtype is given twice"},
    {"shape twice", tensor(R"("dtype":"U8","shape":[1],"shape":[1],"data_offsets":[0,1])"), 1,
     "shape is given twice"},
    {"unknown field", tensor(R"("dtype":"F32","strides":[1])"), 0, "unknown field \"strides\""},
    {"no dtype", tensor(R"("shape":[1],"data_offsets":[0,4])"), 4, "dtype is missing"},
    {"no shape", tensor(R"("dtype":"F32","data_offsets":[0,4])"), 4, "shape is missing"},
    {"no offsets", tensor(R"("dtype":"F32","shape":[1])"), 4, "data_offsets is missing"},
    {"unknown dtype", tensor(R"("dtype":"F13","shape":[1],"data_offsets":[0,4])"), 4,
     "tensor \"t\": unknown dtype \"F13\""},
    {"dtype in lower case", tensor(R"("dtype":"f32","shape":[1],"data_offsets":[0,4])"), 4,
     "unknown dtype \"f32\""},
    {"dtype is a number", tensor(R"("dtype":4)"), 0, "dtype is 4, expected a string"},
    {"dtype is null", tensor(R"("dtype":null)"), 0, "dtype is null"},
    {"shape is a number", tensor(R"("dtype":"F32","shape":4)"), 0, "shape is 4, expected an array"},
    {"shape is an object", tensor(R"("dtype":"F32","shape":{})"), 0, "shape is an object"},
    {"shape has a string", f32("[\"1\"]", "[0,4]"), 4, "shape has \"1\""},
    {"negative size", f32("[-1]", "[0,4]"), 4, "shape has -1"},
    {"fractional size", f32("[1.5]", "[0,4]"), 4, "shape has 1.5"},
    {"size 1e2", f32("[1e2]", "[0,400]"), 400, "shape has 1e2"},
    {"size 2^63", f32("[9223372036854775808]", "[0,4]"), 4, "shape has 9223372036854775808"},
    {"size past 2^64", f32("[36893488147419103232]", "[0,4]"), 4, "shape has 36893488147419103232"},
    {"nested shape", f32("[[1]]", "[0,4]"), 4, "shape has an array"},
    {"seventeen dimensions", f32("[1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1]", "[0,4]"), 4,
     "more than 16 dimensions"},
    {"elements past 2^63", f32("[4294967296,4294967296]", "[0,4]"), 4, "63 bits"},
    {"bytes past 2^64", f32("[4611686018427387904,1]", "[0,0]"), 0, "does not take the 0 bytes"},
    {"size that wraps to the right number", f32("[4611686018427387905]", "[0,4]"), 4,
     "does not take the 4 bytes"},
    {"one offset", f32("[1]", "[0]"), 4, "data_offsets has 1 numbers"},
    {"no offset", f32("[1]", "[]"), 4, "data_offsets has 0 numbers"},
    {"three offsets", f32("[1]", "[0,4,8]"), 4, "data_offsets has more than two"},
    {"negative offset", f32("[1]", "[-4,0]"), 4, "data_offsets has -4"},
    {"offsets reversed", f32("[1]", "[4,0]"), 4, "data_offsets [4, 0]"},
    {"end beyond the file", f32("[2]", "[0,8]"), 4, "do not lie in the file's 4 bytes"},
    {"begin beyond the file", f32("[1]", "[100,104]"), 4, "[100, 104] do not lie"},
    {"end near 2^63", f32("[1]", "[0,9223372036854775807]"), 4, "do not lie in the file"},
    {"too few bytes for the shape", f32("[2]", "[0,4]"), 4,
     "shape (2,) of F32 does not take the 4 bytes"},
    {"too many bytes for the shape", f32("[1]", "[0,8]"), 8, "does not take the 8 bytes"},
    {"hole at the start", f32("[1]", "[4,8]"), 8, "hole"},
    {"bytes left at the end", f32("[1]", "[0,4]"), 8, "the tensors take 4 bytes, the file has 8"},
    {"data without tensors", "{}", 8, "the tensors take 0 bytes, the file has 8"},
    {"overlap",
     R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},"b":{"dtype":"U8","shape":[4],"data_offsets":[2,6]}})",
     6, "tensor \"b\": data_offsets begin at 2"},
    {"the same bytes twice",
     R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},"b":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}})",
     4, "data_offsets begin at 0"},
    {"hole in the middle",
     R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"b":{"dtype":"U8","shape":[1],"data_offsets":[2,3]}})",
     3, "leaving a hole"},
    {"deep nesting", "{" + std::string(100'000, '['), 0, "not JSON"},
    {"deep nesting of objects", R"({"t":)" + std::string(1000, '{'), 0, "not JSON"},
};

TEST(SafetensorsHeader, SaysWhatIsWrong) {
  for (const HeaderCase& c : kHeaderCases) {
    const Result<SafetensorsHeader> header = parse_safetensors_header(c.json, c.data_bytes);
    if (*c.message == '\0') {
      EXPECT_TRUE(header.ok()) << c.name << ": " << header.status().message();
      continue;
    }
    ASSERT_FALSE(header.ok()) << c.name;
    EXPECT_NE(header.status().message().find(c.message), std::string::npos)
        << c.name << ": " << header.status().message();
  }
}

TEST(SafetensorsHeader, LongAndStrangeNamesAreShownShortAndEscaped) {
  const std::string name = "\\u001b[31m" + std::string(5000, 'x');
  const Result<SafetensorsHeader> header = parse_safetensors_header("{\"" + name + "\":1}", 0);
  ASSERT_FALSE(header.ok());
  EXPECT_EQ(header.status().message().find('\033'), std::string::npos);
  EXPECT_LT(header.status().message().size(), 300u);
}

// Every prefix of a good header, and every single byte of it replaced: an answer, never a crash,
// and what is accepted covers the data exactly.
TEST(SafetensorsHeader, SurvivesTruncationAndEveryReplacedByte) {
  const std::string good = kGood;
  for (size_t length = 0; length < good.size(); ++length) {
    EXPECT_FALSE(parse_safetensors_header(good.substr(0, length), 20).ok()) << length;
  }
  const PhiloxStream random(testing::UnitTest::GetInstance()->random_seed() + 17);
  uint64_t word = 0;
  for (size_t at = 0; at < good.size(); ++at) {
    for (int round = 0; round < 8; ++round) {
      std::string bad = good;
      bad[at] = static_cast<char>(random.word(word++));
      const Result<SafetensorsHeader> header = parse_safetensors_header(bad, 20);
      if (!header.ok()) continue;
      uint64_t covered = 0;
      for (const TensorEntry& t : header->tensors) covered += t.end - t.begin;
      EXPECT_EQ(covered, 20u) << bad;
    }
  }
}

TEST(SafetensorsReader, RefusesFilesThatAreNone) {
  const TestDirectory directory;
  const std::string json = "{}";
  const struct {
    const char* name;
    std::string bytes;
    const char* message;
  } cases[] = {
      {"empty", "", "has 0 bytes"},
      {"seven bytes", "1234567", "has 7 bytes"},
      {"header length beyond the file", little_endian(3, 8) + json, "only 2 follow"},
      {"header length 2^64 - 1", little_endian(~uint64_t{0}, 8) + json, "18446744073709551615"},
      {"header length 2^63", little_endian(uint64_t{1} << 63, 8) + json, "9223372036854775808"},
      {"header length that wraps past 8", little_endian(~uint64_t{7}, 8) + json,
       "18446744073709551608"},
      {"header length 0", little_endian(0, 8), "not a safetensors file"},
      {"an npy file", npy_bytes(1, "{}", "data and more data"), "not a safetensors file"},
      {"zip", std::string("PK\3\4") + std::string(100, '\0'), "safetensors file"},
      {"zeros", std::string(64, '\0'), "not a safetensors file"},
  };
  for (const auto& c : cases) {
    const std::string path = directory.write("f.safetensors", c.bytes);
    const Result<SafetensorsReader> reader = SafetensorsReader::open(path);
    ASSERT_FALSE(reader.ok()) << c.name;
    EXPECT_NE(reader.status().message().find(c.message), std::string::npos)
        << c.name << ": " << reader.status().message();
    EXPECT_EQ(reader.status().message().find(path), 0u) << c.name;
  }
}

TEST(SafetensorsReader, HeaderOf200MegabytesIsRefusedWithoutReadingIt) {
  const TestDirectory directory;
  const std::string path = directory.write("f.safetensors", little_endian(200'000'000, 8));
  std::filesystem::resize_file(path, 300'000'000);  // sparse
  const Result<SafetensorsReader> reader = SafetensorsReader::open(path);
  ASSERT_FALSE(reader.ok());
  EXPECT_NE(reader.status().message().find("at most 100000000 are allowed"), std::string::npos);
}

TEST(SafetensorsReader, RefusesWhatIsNoFile) {
  const TestDirectory directory;
  EXPECT_NE(SafetensorsReader::open(directory.path("none")).status().message().find("No such file"),
            std::string::npos);
  EXPECT_NE(SafetensorsReader::open(directory.path("")).status().message().find("is a directory"),
            std::string::npos);
  ASSERT_EQ(mkfifo(directory.path("pipe").c_str(), 0600), 0);
  EXPECT_NE(
      SafetensorsReader::open(directory.path("pipe")).status().message().find("not a regular file"),
      std::string::npos);
  if (geteuid() != 0) {  // root reads everything
    const std::string path = directory.write("secret", "x");
    chmod(path.c_str(), 0);
    EXPECT_NE(SafetensorsReader::open(path).status().message().find("Permission denied"),
              std::string::npos);
  }
}

TEST(SafetensorsReader, FileCutShortAfterOpeningIsAnError) {
  const TestDirectory directory;
  const std::string path =
      directory.write("f.safetensors", safetensors_bytes(kGood, std::string(20, 'x')));
  const Result<SafetensorsReader> reader = SafetensorsReader::open(path);
  ASSERT_TRUE(reader.ok()) << reader.status().message();
  ASSERT_TRUE(reader->read(*reader->header().find("n")).ok());
  std::filesystem::resize_file(path, std::filesystem::file_size(path) - 1);
  EXPECT_FALSE(reader->read(*reader->header().find("n")).ok());
}

TEST(SafetensorsWriter, WhatIsWrittenReadsBack) {
  const TestDirectory directory;
  const std::string path = directory.path("out.safetensors");
  std::vector<TensorEntry> entries = {{"a.o", ElementType::kBf16, {2, 3}, 0, 0},
                                      {"empty", ElementType::kF32, {0, 5}, 0, 0},
                                      {"ü \"quoted\" \\", ElementType::kF64, {}, 0, 0}};
  const std::string a(12, '\x7f'), b(8, '\x11');
  {
    Result<SafetensorsWriter> writer = SafetensorsWriter::create(path, entries, {{"k", "v \n ü"}});
    ASSERT_TRUE(writer.ok()) << writer.status().message();
    ASSERT_TRUE(writer->append(std::as_bytes(std::span(a))).ok());
    ASSERT_TRUE(writer->append({}).ok());
    EXPECT_FALSE(std::filesystem::exists(path));
    EXPECT_FALSE(writer->commit().ok()) << "one tensor is still to come";
    ASSERT_TRUE(writer->append(std::as_bytes(std::span(b))).ok());
    ASSERT_TRUE(writer->commit().ok());
  }
  EXPECT_EQ(directory.count(), 1u);
  const Result<SafetensorsReader> reader = SafetensorsReader::open(path);
  ASSERT_TRUE(reader.ok()) << reader.status().message();
  EXPECT_EQ(reader->header().metadata.at("k"), "v \n ü");
  ASSERT_EQ(reader->header().tensors.size(), 3u);
  for (const TensorEntry& entry : entries) {
    const TensorEntry* found = reader->header().find(entry.name);
    ASSERT_NE(found, nullptr) << entry.name;
    EXPECT_EQ(found->type, entry.type);
    EXPECT_EQ(found->shape, entry.shape);
    EXPECT_EQ(found->begin % static_cast<uint64_t>(2), 0u);
  }
  const Result<Bytes> read = reader->read(*reader->header().find("a.o"));
  ASSERT_TRUE(read.ok());
  EXPECT_EQ(std::string(reinterpret_cast<const char*>(read->data()), read->size()), a);
}

TEST(SafetensorsWriter, WithoutCommitTheOldFileStaysAndNothingElse) {
  const TestDirectory directory;
  const std::string path = directory.write("out.safetensors", "old");
  {
    Result<SafetensorsWriter> writer =
        SafetensorsWriter::create(path, {{"o", ElementType::kF32, {1}, 0, 0}}, {});
    ASSERT_TRUE(writer.ok());
    const std::string wrong(3, 'x');
    EXPECT_FALSE(writer->append(std::as_bytes(std::span(wrong))).ok());
  }
  EXPECT_EQ(directory.read("out.safetensors"), "old");
  EXPECT_EQ(directory.count(), 1u);
}

TEST(OutputFile, NeedsADirectoryThatExistsAndAPlainFile) {
  const TestDirectory directory;
  const Status missing = OutputFile::create(directory.path("none/out")).status();
  EXPECT_NE(missing.message().find("does not exist"), std::string::npos) << missing.message();
  std::filesystem::create_directory(directory.path("d"));
  EXPECT_NE(OutputFile::create(directory.path("d")).status().message().find("is a directory"),
            std::string::npos);
  EXPECT_FALSE(OutputFile::create("/dev/null").ok());
}

TEST(Element, ConversionRoundsOnceAndRefusesOverflow) {
  // 1 + 2^-8 + 2^-40: through float it would be a tie for bfloat16 and go down to 1.
  const double values[] = {1.0 + 0x1p-8 + 0x1p-40, -0.0, 0x1p-24, 65504.0};
  const auto bytes = std::as_bytes(std::span(values));
  const Result<Bytes> bf16 = convert(bytes, DType::kFp64, DType::kBf16);
  ASSERT_TRUE(bf16.ok());
  EXPECT_EQ(harness::load_element(DType::kBf16, bf16->data()), 1.0 + 0x1p-7);
  EXPECT_TRUE(std::signbit(harness::load_element(DType::kBf16, bf16->data() + 2)));
  const Result<Bytes> fp16 = convert(bytes, DType::kFp64, DType::kFp16);
  ASSERT_TRUE(fp16.ok());
  EXPECT_EQ(harness::load_element(DType::kFp16, fp16->data() + 4), 0x1p-24);
  EXPECT_EQ(harness::load_element(DType::kFp16, fp16->data() + 6), 65504.0);

  const float large[] = {1.0f, std::numeric_limits<float>::infinity(), 70000.0f};
  const Result<Bytes> overflow =
      convert(std::as_bytes(std::span(large)), DType::kFp32, DType::kFp16);
  ASSERT_FALSE(overflow.ok());
  EXPECT_EQ(overflow.status().message(), "element 2 is 70000, too large for fp16");
}

TEST(Element, LengthsFitInto32Bits) {
  const int64_t lengths[] = {0, 7, int64_t{1} << 31};
  const auto bytes = std::as_bytes(std::span(lengths));
  EXPECT_NE(read_int32(bytes, ElementType::kI64).status().message().find("element 2 is 2147483648"),
            std::string::npos);
  const Result<std::vector<int32_t>> good = read_int32(bytes.first(16), ElementType::kI64);
  ASSERT_TRUE(good.ok());
  EXPECT_EQ(*good, (std::vector<int32_t>{0, 7}));
  EXPECT_FALSE(read_int32(bytes, ElementType::kF32).ok());
}

}  // namespace
}  // namespace tilewise::cli
