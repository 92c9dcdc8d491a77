#include <charconv>
#include <cstdint>

#include "cli/commands.h"
#include "cli/problems.h"
#include "core/format.h"
#include "tilewise/tilewise.h"

namespace tilewise::cli {
namespace {

bool is_cuda(const std::string& device) {
  if (device == "cuda") return true;
  if (!device.starts_with("cuda:") || device.size() == 5) return false;
  return device.find_first_not_of("0123456789", 5) == std::string::npos;
}

}  // namespace

int32_t PlanChoice::cuda_index() const {
  if (device == "cpu") return -1;
  const size_t colon = device.find(':');
  int32_t index = 0;
  if (colon != std::string::npos) {
    const char* end = device.data() + device.size();
    if (std::from_chars(device.data() + colon + 1, end, index).ec != std::errc()) index = INT32_MAX;
  }
  return index;
}

ExitCode check_choice(const PlanChoice& choice, bool on_cuda) {
  if (choice.device != "cpu" && !is_cuda(choice.device)) {
    return fail(kUsage, format("--device is \"{}\"; expected cpu or cuda:N", choice.device));
  }
  if (choice.device != "cpu") {
    int32_t count = 0;
    tilewise_device_count(TILEWISE_CUDA, &count);
    if (choice.cuda_index() >= count) {
      return fail(kFailed,
                  format("--device {}: {}", choice.device, tilewise_backend_note(TILEWISE_CUDA)));
    }
    if (!on_cuda) {
      return fail(kFailed, format("--device {}: this verb computes on the CPU; check and explain "
                                  "take CUDA devices",
                                  choice.device));
    }
  }
  if (choice.kernel.empty()) return kOk;
  std::vector<std::string> names;
  for (int32_t i = 0; i < tilewise_kernel_count(); ++i) {
    names.emplace_back(tilewise_kernel_name(i));
    if (names.back() == choice.kernel) return kOk;
  }
  std::string list;
  for (const std::string& name : names) list += " " + name;
  const std::string meant = nearest(choice.kernel, names);
  return fail(kUsage, format("--kernel is \"{}\"{}; the kernels are:{}", choice.kernel,
                             meant.empty() ? "" : ", did you mean " + meant + "?", list));
}

}  // namespace tilewise::cli
