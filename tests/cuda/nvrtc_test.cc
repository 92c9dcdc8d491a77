// The device code compiles through NVRTC, which has no host headers: a kernel can then be compiled
// at run time. Needs no device.
#include <gtest/gtest.h>
#include <nvrtc.h>

#include <algorithm>
#include <filesystem>
#include <string>
#include <vector>

namespace tilewise {
namespace {

// The only standard header that device code includes, and all that it takes from it.
constexpr const char* kCstdint = R"(#pragma once
using int8_t = signed char;
using uint8_t = unsigned char;
using int16_t = short;
using uint16_t = unsigned short;
using int32_t = int;
using uint32_t = unsigned int;
using int64_t = long long;
using uint64_t = unsigned long long;
using uintptr_t = unsigned long long;
)";

// What nvcc has of the host compiler's built-in functions, and NVRTC lacks.
constexpr const char* kBuiltins = R"(
#define __builtin_inff() __int_as_float(0x7f800000)
#define __builtin_nanf(text) __int_as_float(0x7fffffff)
)";

struct Compiled {
  nvrtcResult result;
  std::string log;
};

// With the library's sources on the include path.
Compiled compile(const std::string& text, const std::string& name_expression = "",
                 const std::string& arch = "sm_80") {
  const char* const texts[] = {kCstdint};
  const char* const names[] = {"cstdint"};
  const std::string source = kBuiltins + text;
  nvrtcProgram program = nullptr;
  Compiled compiled;
  compiled.result = nvrtcCreateProgram(&program, source.c_str(), "test.cu", 1, texts, names);
  if (compiled.result != NVRTC_SUCCESS) return compiled;
  if (!name_expression.empty()) nvrtcAddNameExpression(program, name_expression.c_str());
  // Generic lambdas are host functions without the last one.
  const std::string arch_option = "-arch=" + arch;
  const char* const options[] = {"-std=c++20", arch_option.c_str(), "-I" TILEWISE_SOURCE_DIR "/src",
                                 "-default-device"};
  compiled.result = nvrtcCompileProgram(program, 4, options);
  size_t size = 0;
  nvrtcGetProgramLogSize(program, &size);
  compiled.log.resize(size);
  nvrtcGetProgramLog(program, compiled.log.data());
  nvrtcDestroyProgram(&program);
  return compiled;
}

// Every header of device code; *_instance.cuh have the host code that launches it.
std::vector<std::string> device_headers() {
  const std::filesystem::path source = TILEWISE_SOURCE_DIR "/src";
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(source / "cuda")) {
    const std::string name = entry.path().lexically_relative(source).string();
    if (name.ends_with(".cuh") && !name.ends_with("_instance.cuh")) names.push_back(name);
  }
  std::sort(names.begin(), names.end());
  return names;
}

TEST(Nvrtc, EveryDeviceHeaderCompiles) {
  const std::vector<std::string> headers = device_headers();
  EXPECT_NE(std::find(headers.begin(), headers.end(), "cuda/sm80/forward.cuh"), headers.end());
  for (const std::string& header : headers) {
    const Compiled compiled = compile("#include \"" + header + "\"\n");
    EXPECT_EQ(compiled.result, NVRTC_SUCCESS) << header << "\n" << compiled.log;
  }
}

TEST(Nvrtc, AForwardKernelIsInstantiated) {
  for (const char* const dtype : {"kFp16", "kBf16"}) {
    const std::string name =
        "tilewise::cuda::sm80::forward<tilewise::DType::" + std::string(dtype) +
        ", 64, tilewise::cuda::Variant::kGeneral>";
    const Compiled compiled = compile("#include \"cuda/sm80/forward.cuh\"\n", name);
    EXPECT_EQ(compiled.result, NVRTC_SUCCESS) << name << "\n" << compiled.log;
  }
}

// Without the remark that ptxas lets its products run one by one (C75xx).
TEST(Nvrtc, AHopperForwardKernelIsInstantiated) {
  for (const char* const variant : {"kFull", "kBanded", "kGeneral"}) {
    const std::string name =
        "tilewise::cuda::sm90::forward<tilewise::DType::kBf16, 128, tilewise::cuda::Variant::" +
        std::string(variant) + ", 128>";
    const Compiled compiled = compile("#include \"cuda/sm90/forward.cuh\"\n", name, "sm_90a");
    EXPECT_EQ(compiled.result, NVRTC_SUCCESS) << name << "\n" << compiled.log;
    EXPECT_EQ(compiled.log.find("C75"), std::string::npos) << name << "\n" << compiled.log;
  }
}

TEST(Nvrtc, AHopperBackwardKernelIsInstantiated) {
  for (const char* const variant : {"kFull", "kBanded"}) {
    const std::string name =
        "tilewise::cuda::sm90::backward<tilewise::DType::kFp16, 64, tilewise::cuda::Variant::" +
        std::string(variant) + ">";
    const Compiled compiled = compile("#include \"cuda/sm90/backward.cuh\"\n", name, "sm_90a");
    EXPECT_EQ(compiled.result, NVRTC_SUCCESS) << name << "\n" << compiled.log;
    EXPECT_EQ(compiled.log.find("C75"), std::string::npos) << name << "\n" << compiled.log;
  }
}

TEST(Nvrtc, AHostHeaderIsRefused) {
  EXPECT_NE(compile("#include <vector>\n").result, NVRTC_SUCCESS);
}

}  // namespace
}  // namespace tilewise
