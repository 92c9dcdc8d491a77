#include <cstdio>
#include <nlohmann/json.hpp>

#include "cli/commands.h"
#include "cli/kernel_table.h"
#include "cli/table.h"
#include "core/format.h"
#include "tilewise/tilewise.h"

namespace tilewise::cli {
namespace {

std::string version_text() {
  const int32_t v = tilewise_version();
  return format("{}.{}.{}", v / 10000, v / 100 % 100, v % 100);
}

std::string compiler_text() {
#if defined(__clang__)
  return "clang " __clang_version__;
#else
  return "g++ " __VERSION__;
#endif
}

std::string build_text() {
#if defined(NDEBUG)
  return "release";
#else
  return "with assertions";
#endif
}

}  // namespace

ExitCode info(const InfoOptions& options) {
  if (options.kernels) {
    if (options.json) return fail(kUsage, "--kernels prints Markdown; it does not go with --json");
    std::printf("%s", kernel_table().c_str());
    return kOk;
  }
  tilewise_device_info device = {};
  device.struct_size = sizeof device;
  const tilewise_status status = tilewise_device_get_info(TILEWISE_CPU, 0, &device);
  if (status != TILEWISE_OK) return fail(kFailed, tilewise_last_error());
  if (options.json) {
    nlohmann::ordered_json json = {{"version", version_text()},
                                   {"abi", TILEWISE_VERSION_MAJOR},
                                   {"compiler", compiler_text()},
                                   {"build", build_text()},
                                   {"cpu",
                                    {{"name", device.name},
                                     {"isa", device.isa},
                                     {"cores", device.num_cores},
                                     {"note", device.note}}},
                                   {"backends",
                                    {{"cpu", tilewise_backend_note(TILEWISE_CPU)},
                                     {"cuda", tilewise_backend_note(TILEWISE_CUDA)}}},
                                   {"kernels", nlohmann::json::array()}};
    for (int32_t i = 0; i < tilewise_kernel_count(); ++i) {
      json["kernels"].push_back(
          {{"name", tilewise_kernel_name(i)}, {"summary", tilewise_kernel_summary(i)}});
    }
    std::printf("%s\n",
                json.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace).c_str());
    return kOk;
  }
  std::printf("library   tilewise %s, ABI %d\n", version_text().c_str(), TILEWISE_VERSION_MAJOR);
  std::printf("compiler  %s, %s\n", compiler_text().c_str(), build_text().c_str());
  std::printf("processor %s, %d core%s for this process\n", device.name, device.num_cores,
              device.num_cores == 1 ? "" : "s");
  std::printf("isa       %s%s%s\n", device.isa, device.note[0] != '\0' ? "; " : "", device.note);
  std::printf("cpu       %s\n", tilewise_backend_note(TILEWISE_CPU));
  std::printf("cuda      %s\n\n", tilewise_backend_note(TILEWISE_CUDA));
  std::vector<std::vector<std::string>> rows;
  for (int32_t i = 0; i < tilewise_kernel_count(); ++i) {
    rows.push_back({tilewise_kernel_name(i), tilewise_kernel_summary(i)});
  }
  std::printf("%s", table_text({{"kernel, in order of preference"}, {"computes"}}, rows).c_str());
  return kOk;
}

}  // namespace tilewise::cli
