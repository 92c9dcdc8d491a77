// struct_size of structs that will have grown: release 1 has `a`, release 2 adds `b` and `c`.
#include <gtest/gtest.h>

#include <vector>

#include "capi/struct_size.h"

namespace tilewise::capi {
namespace {

struct First {
  size_t struct_size;
  int64_t a;
};
struct Now {
  size_t struct_size;
  int64_t a;
  int64_t b;
  int32_t c;
  int32_t d;
};
constexpr Now kDefaults = {sizeof(Now), 1, 2, 3, 4};

// A caller's struct of `size` bytes: fields 10, 20, 30, 40, then zeros.
std::vector<std::byte> callers(size_t size) {
  std::vector<std::byte> bytes(std::max(size, sizeof(Now)) + 64);
  const Now filled = {size, 10, 20, 30, 40};
  std::memcpy(bytes.data(), &filled, sizeof filled);
  std::memset(bytes.data() + size, 0xEE, bytes.size() - size);  // not the struct's any more
  return bytes;
}
const Now* as_now(const std::vector<std::byte>& bytes) {
  return reinterpret_cast<const Now*>(bytes.data());
}

TEST(StructSize, EverySize) {
  for (size_t size = sizeof(size_t); size <= sizeof(Now) + 40; size += 4) {
    SCOPED_TRACE(size);
    Now out = kDefaults;
    const auto bytes = callers(size);
    const Status status = read_struct("fake", as_now(bytes), sizeof(First), out);
    if (size < sizeof(First)) {
      EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
      EXPECT_EQ(out.a, 1);
      continue;
    }
    ASSERT_TRUE(status.ok()) << status.message();
    EXPECT_EQ(out.struct_size, sizeof(Now));
    EXPECT_EQ(out.a, 10);
    if (size % 8 == 0 || size >= sizeof(Now)) {  // sizes that some release could have
      EXPECT_EQ(out.b, size >= offsetof(Now, c) ? 20 : 2);
      EXPECT_EQ(out.c, size >= sizeof(Now) ? 30 : 3);
      EXPECT_EQ(out.d, size >= sizeof(Now) ? 40 : 4);
    }
  }
}

TEST(StructSize, EveryByteOfTheTailMustBeZero) {
  const size_t size = sizeof(Now) + 40;
  for (size_t i = sizeof(Now); i < size; ++i) {
    auto bytes = callers(size);
    bytes[i] = std::byte{1};
    Now out = kDefaults;
    const Status status = read_struct("fake", as_now(bytes), sizeof(First), out);
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    EXPECT_NE(status.message().find("byte " + std::to_string(i)), std::string::npos);
    EXPECT_EQ(out.a, 1);
  }
}

TEST(StructSize, AbsurdSizesAreNotRead) {
  auto bytes = callers(sizeof(Now));
  for (const size_t size : {size_t{0}, size_t{15}, kLargestStruct + 1, SIZE_MAX / 2, SIZE_MAX}) {
    std::memcpy(bytes.data(), &size, sizeof size);
    Now out = kDefaults;
    const Status status = read_struct("fake", as_now(bytes), sizeof(First), out);
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    EXPECT_NE(status.message().find(to_text(uint64_t{size})), std::string::npos);
  }
}

TEST(StructSize, OutputsAreFilledAsFarAsTheyReach) {
  for (size_t size = sizeof(First); size <= sizeof(Now) + 40; size += 8) {
    SCOPED_TRACE(size);
    auto bytes = callers(size);
    std::memset(bytes.data() + sizeof size, 0xEE, bytes.size() - sizeof size);
    write_struct(kDefaults, reinterpret_cast<Now*>(bytes.data()));
    const Now* now = as_now(bytes);
    EXPECT_EQ(now->struct_size, size);
    EXPECT_EQ(now->a, 1);
    if (size >= offsetof(Now, c)) {
      EXPECT_EQ(now->b, 2);
    }
    for (size_t i = sizeof(Now); i < size; ++i) EXPECT_EQ(bytes[i], std::byte{0});
    for (size_t i = size; i < bytes.size(); ++i) EXPECT_EQ(bytes[i], std::byte{0xEE});
  }
}

}  // namespace
}  // namespace tilewise::capi
