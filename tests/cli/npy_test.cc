#include "cli/io/npy.h"

#include <gtest/gtest.h>

#include "core/random.h"
#include "tests/cli/test_files.h"

namespace tilewise::cli {
namespace {

constexpr const char* kGood = "{'descr': '<f4', 'fortran_order': False, 'shape': (1, 2), }";

TEST(NpyDictionary, ReadsWhatNumpyAndOthersWrite) {
  const struct {
    const char* text;
    ElementType type;
    std::vector<int64_t> shape;
  } cases[] = {
      {kGood, ElementType::kF32, {1, 2}},
      {"{'descr': '<f2', 'fortran_order': False, 'shape': (3,), }   \n", ElementType::kF16, {3}},
      {"{'descr': '<f8', 'fortran_order': False, 'shape': (), }", ElementType::kF64, {}},
      {"{\"shape\":(0,7),\"fortran_order\":False,\"descr\":\"<i4\"}", ElementType::kI32, {0, 7}},
      {"{'descr': '<i8', 'fortran_order': False, 'shape': (3L, 4L), }", ElementType::kI64, {3, 4}},
  };
  for (const auto& c : cases) {
    const Result<NpyHeader> header = parse_npy_dictionary(c.text);
    ASSERT_TRUE(header.ok()) << c.text << ": " << header.status().message();
    EXPECT_EQ(header->type, c.type) << c.text;
    EXPECT_EQ(header->shape, c.shape) << c.text;
  }
}

TEST(NpyDictionary, SaysWhatIsWrong) {
  const auto with = [](const std::string& descr, const std::string& order,
                       const std::string& shape) {
    return "{'descr': " + descr + ", 'fortran_order': " + order + ", 'shape': " + shape + ", }";
  };
  const struct {
    std::string text;
    const char* message;
  } cases[] = {
      {"", "not a dictionary"},
      {"{", "not a dictionary"},
      {"[]", "not a dictionary"},
      {"{}", "has no descr"},
      {"{'descr' '<f4'}", "not a dictionary"},
      {"{'descr: '<f4'}", "not a dictionary"},
      {"{'descr': '<f4'", "not a dictionary"},
      {"{'descr': '<f4'}", "has no fortran_order"},
      {"{'descr': '<f4', 'fortran_order': False}", "has no shape"},
      {"{'descr': '<f4', 'descr': '<f4'}", "gives descr twice"},
      {"{'dtype': '<f4'}", "unknown key \"dtype\""},
      {with("'>f4'", "False", "(1,)"), "big-endian"},
      {with("'|V2'", "False", "(1,)"), "bfloat16"},
      {with("'<c8'", "False", "(1,)"), "descr \"<c8\" is not read"},
      {with("'|O'", "False", "(1,)"), "descr \"|O\" is not read"},
      {with("'f4'", "False", "(1,)"), "descr \"f4\" is not read"},
      {with("[('a', '<f4')]", "False", "(1,)"), "structured"},
      {with("4", "False", "(1,)"), "descr is not a string"},
      {with("'<f4'", "True", "(1,)"), "fortran_order is True"},
      {with("'<f4'", "0", "(1,)"), "neither True nor False"},
      {with("'<f4'", "False", "1"), "shape is not a tuple"},
      {with("'<f4'", "False", "[1]"), "shape is not a tuple"},
      {with("'<f4'", "False", "(1"), "shape is not a tuple"},
      {with("'<f4'", "False", "(1 2)"), "tuple of integers"},
      {with("'<f4'", "False", "(1.5,)"), "tuple of integers"},
      {with("'<f4'", "False", "('1',)"), "tuple of integers"},
      {with("'<f4'", "False", "(9223372036854775808,)"), "tuple of integers"},
      {with("'<f4'", "False", "(1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1)"), "more than 16 dimensions"},
      {std::string(kGood) + "x", "goes on after its dictionary"},
      {std::string(kGood) + kGood, "goes on after its dictionary"},
      {with("__import__('os')", "False", "(1,)"), "descr is not a string"},
  };
  for (const auto& c : cases) {
    const Result<NpyHeader> header = parse_npy_dictionary(c.text);
    ASSERT_FALSE(header.ok()) << c.text;
    EXPECT_NE(header.status().message().find(c.message), std::string::npos)
        << c.text << ": " << header.status().message();
  }
}

TEST(NpyDictionary, SurvivesTruncationAndEveryReplacedByte) {
  const std::string good = kGood;
  for (size_t length = 0; length < good.size(); ++length) {
    EXPECT_FALSE(parse_npy_dictionary(good.substr(0, length)).ok()) << length;
  }
  const PhiloxStream random(testing::UnitTest::GetInstance()->random_seed() + 23);
  uint64_t word = 0;
  for (size_t at = 0; at < good.size(); ++at) {
    for (int round = 0; round < 8; ++round) {
      std::string bad = good;
      bad[at] = static_cast<char>(random.word(word++));
      (void)parse_npy_dictionary(bad).ok();
    }
  }
}

TEST(ReadNpy, VersionsOneTwoAndThree) {
  const TestDirectory directory;
  for (const int version : {1, 2, 3}) {
    const std::string path = directory.write("a.npy", npy_bytes(version, kGood, "abcdefgh"));
    const Result<NpyArray> array = read_npy(path);
    ASSERT_TRUE(array.ok()) << version << ": " << array.status().message();
    EXPECT_EQ(std::string(reinterpret_cast<const char*>(array->bytes.data()), array->bytes.size()),
              "abcdefgh");
  }
}

TEST(ReadNpy, RefusesFilesThatAreNone) {
  const TestDirectory directory;
  const std::string huge =
      "{'descr': '<f8', 'fortran_order': False, 'shape': (2305843009213693953,), }";
  const std::string overflow =
      "{'descr': '<f8', 'fortran_order': False, 'shape': (4294967296, 4294967296), }";
  const std::string negative = "{'descr': '<f4', 'fortran_order': False, 'shape': (-1, -2), }";
  const struct {
    const char* name;
    std::string bytes;
    const char* message;
  } cases[] = {
      {"empty", "", "does not begin"},
      {"magic alone", "\x93NUMPY", "does not begin"},
      {"another file", "{\"q\": 1}  more text", "does not begin"},
      {"version 0", npy_bytes(0, kGood, "abcdefgh"), "version 0.0"},
      {"version 4", npy_bytes(4, kGood, "abcdefgh"), "version 4.0"},
      {"version 1.1", std::string("\x93NUMPY\1\1\2\0{}", 12), "version 1.1"},
      {"version 2 cut in its length", std::string("\x93NUMPY\2\0\2\0\0", 11),
       "ends inside its header"},
      {"header beyond the file", std::string("\x93NUMPY\1\0\xff\xff{}", 12),
       "65535 bytes, but 2 follow"},
      {"header of 4 GiB", std::string("\x93NUMPY\2\0\xff\xff\xff\xff{}", 14), "4294967295 bytes"},
      {"too little data", npy_bytes(1, kGood, "abc"), "has 3 bytes of data"},
      {"too much data", npy_bytes(1, kGood, "abcdefghi"), "has 9 bytes of data"},
      {"size that wraps to 8 bytes", npy_bytes(1, huge, "abcdefgh"), "takes another number"},
      {"elements past 2^63", npy_bytes(1, overflow, ""), "63 bits"},
      {"negative sizes", npy_bytes(1, negative, "abcdefgh"), "negative size"},
  };
  for (const auto& c : cases) {
    const std::string path = directory.write("a.npy", c.bytes);
    const Result<NpyArray> array = read_npy(path);
    ASSERT_FALSE(array.ok()) << c.name;
    EXPECT_NE(array.status().message().find(c.message), std::string::npos)
        << c.name << ": " << array.status().message();
    EXPECT_EQ(array.status().message().find(path), 0u) << c.name;
  }
}

TEST(WriteNpy, PreambleIsAMultipleOf64AndReadsBack) {
  const TestDirectory directory;
  for (const std::vector<int64_t>& shape :
       {std::vector<int64_t>{}, {1}, {2, 3}, {1, 512, 12, 64}, {0, 4}}) {
    const Result<Bytes> preamble = npy_preamble(ElementType::kF16, shape);
    ASSERT_TRUE(preamble.ok());
    EXPECT_EQ(preamble->size() % 64, 0u);
    std::string bytes(reinterpret_cast<const char*>(preamble->data()), preamble->size());
    EXPECT_EQ(bytes.back(), '\n');
    bytes += std::string(static_cast<size_t>(*element_count(shape)) * 2, 'x');
    const Result<NpyArray> array = read_npy(directory.write("a.npy", bytes));
    ASSERT_TRUE(array.ok()) << array.status().message();
    EXPECT_EQ(array->shape, shape);
  }
  const std::vector<int64_t> one = {1};
  EXPECT_FALSE(npy_preamble(ElementType::kBf16, one).ok());
}

}  // namespace
}  // namespace tilewise::cli
