#include <cmath>
#include <cstdint>
#include <limits>

#include "tests/capi/bad_cases.h"

namespace tilewise::test {
namespace {

constexpr int64_t kHuge = std::numeric_limits<int64_t>::max();
constexpr int64_t kLowest = std::numeric_limits<int64_t>::min();
constexpr int32_t kHuge32 = std::numeric_limits<int32_t>::max();
constexpr int32_t kLowest32 = std::numeric_limits<int32_t>::min();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInf = std::numeric_limits<float>::infinity();

constexpr Kind kForward{TILEWISE_FORWARD}, kBackward{TILEWISE_BACKWARD};

std::string text(int64_t value) { return std::to_string(value); }

struct StridesField {
  const char* name;
  tilewise_strides tilewise_problem::*strides;
  int64_t seqlen, heads, dim;
};
// Sizes of call.cc.
constexpr StridesField kTensors[] = {
    {"q", &tilewise_problem::q, 5, 4, 8},     {"k", &tilewise_problem::k, 7, 2, 8},
    {"v", &tilewise_problem::v, 7, 2, 12},    {"o", &tilewise_problem::o, 5, 4, 12},
    {"do", &tilewise_problem::do_, 5, 4, 12}, {"dq", &tilewise_problem::dq, 5, 4, 8},
    {"dk", &tilewise_problem::dk, 7, 2, 8},   {"dv", &tilewise_problem::dv, 7, 2, 12}};
struct AxisField {
  const char* name;
  int64_t tilewise_strides::*axis;
};
constexpr AxisField kAxes[] = {{"batch", &tilewise_strides::batch},
                               {"seqlen", &tilewise_strides::seqlen},
                               {"head", &tilewise_strides::head}};

tilewise_strides contiguous(const StridesField& t) {
  return {t.seqlen * t.heads * t.dim, t.heads * t.dim, t.dim, 1};
}

void add_strides_of(std::vector<BadCase>& cases, const Kind& kind, const StridesField& tensor,
                    bool output) {
  const std::string prefix = kind.name() + "_" + tensor.name;
  const auto add = [&](const std::string& name, tilewise_strides strides, tilewise_status status,
                       std::vector<std::string> words) {
    words.push_back(tensor.name);
    const auto field = tensor.strides;
    cases.push_back({prefix + "_" + name, kind,
                     [field, strides](Call& c) { c.problem.*field = strides; }, status, words});
  };
  for (const int64_t dim : {int64_t{0}, int64_t{2}, int64_t{-1}, kHuge, kLowest}) {  // I2, B007
    tilewise_strides s = contiguous(tensor);
    s.dim = dim;
    add("dim_stride_" + text(dim), s, TILEWISE_INVALID_ARGUMENT, {"dim stride", text(dim)});
  }
  for (const AxisField& axis : kAxes) {
    const std::string stride = std::string(axis.name) + " stride";
    for (const int64_t value : {int64_t{-1}, int64_t{-96}, kLowest}) {
      tilewise_strides s = contiguous(tensor);
      s.*axis.axis = value;
      add(std::string(axis.name) + "_stride_" + text(value), s, TILEWISE_INVALID_ARGUMENT,
          {stride, text(value)});
    }
    for (const int64_t value : {kHuge, kHuge / 2, kHuge / 4 + 1}) {  // I3
      tilewise_strides s = contiguous(tensor);
      s.*axis.axis = value;
      add(std::string(axis.name) + "_stride_" + text(value), s, TILEWISE_OVERFLOW,
          {axis.name, text(value)});
    }
    if (!output) continue;
    for (const int64_t value : {int64_t{0}, int64_t{1}, tensor.dim - 1}) {
      tilewise_strides s = contiguous(tensor);
      s.*axis.axis = value;
      add(std::string(axis.name) + "_rows_overlap_" + text(value), s, TILEWISE_INVALID_ARGUMENT,
          {"strides", text(value)});
    }
  }
}

void add_strides(std::vector<BadCase>& cases) {
  for (int i = 0; i < 4; ++i) add_strides_of(cases, kForward, kTensors[i], i == 3);
  for (int i = 0; i < 8; ++i) add_strides_of(cases, kBackward, kTensors[i], i >= 5);
  for (int i = 0; i < 8; ++i) {
    const StridesField& tensor = kTensors[i];
    const Kind kind{i < 4 ? TILEWISE_FORWARD : TILEWISE_BACKWARD, true};
    cases.push_back(
        {kind.name() + "_" + tensor.name + "_batch_stride",
         kind,
         [tensor](Call& c) { c.problem.*tensor.strides = contiguous(tensor); },
         TILEWISE_INVALID_ARGUMENT,
         {"batch stride", tensor.name, text(tensor.seqlen * tensor.heads * tensor.dim)}});
  }
}

struct SizeField {
  const char* name;
  int64_t tilewise_problem::*field;
  bool zero_is_bad;
};

void add_sizes(std::vector<BadCase>& cases) {  // I5, B053
  const SizeField dense[] = {{"batch", &tilewise_problem::batch, false},
                             {"seqlen_q", &tilewise_problem::seqlen_q, false},
                             {"seqlen_k", &tilewise_problem::seqlen_k, false},
                             {"num_heads", &tilewise_problem::num_heads, true},
                             {"num_heads_kv", &tilewise_problem::num_heads_kv, true},
                             {"head_dim", &tilewise_problem::head_dim, true},
                             {"head_dim_v", &tilewise_problem::head_dim_v, true}};
  const SizeField varlen[] = {{"total_q", &tilewise_problem::total_q, false},
                              {"total_k", &tilewise_problem::total_k, false},
                              {"max_seqlen_q", &tilewise_problem::max_seqlen_q, true},
                              {"max_seqlen_k", &tilewise_problem::max_seqlen_k, true}};
  const auto add = [&](const Kind& kind, const SizeField& f, int64_t value, std::string word) {
    cases.push_back({kind.name() + "_" + f.name + "_" + text(value),
                     kind,
                     [f, value](Call& c) { c.problem.*f.field = value; },
                     TILEWISE_INVALID_ARGUMENT,
                     {f.name, std::move(word)}});
  };
  for (const Kind& kind : {kForward, kBackward}) {
    for (const SizeField& f : dense) {
      for (const int64_t value : {int64_t{-1}, int64_t{-5}, kLowest, kHuge}) {
        add(kind, f, value, text(value));
      }
      if (f.zero_is_bad) add(kind, f, 0, "0");
    }
  }
  for (const auto direction : {TILEWISE_FORWARD, TILEWISE_BACKWARD}) {
    for (const SizeField& f : varlen) {
      for (const int64_t value : {int64_t{-1}, kLowest, kHuge}) {
        add({direction, true}, f, value, text(value));
      }
      // A largest length of 0, or one that the totals do not fit into.
      if (f.zero_is_bad) {
        add({direction, true}, f, 0, "0");
        add({direction, true}, f, 4 - (f.name[11] == 'k'), text(4 - (f.name[11] == 'k')));
      }
    }
  }
  // Fields of the other form of lengths must be 0.
  for (const SizeField& f : varlen) add(kForward, f, 7, "7");
  add({TILEWISE_FORWARD, true}, dense[1], 5, "5");
  add({TILEWISE_FORWARD, true}, dense[2], 7, "7");
  for (const auto& [heads, heads_kv] : {std::pair{3, 2}, {5, 4}, {4, 3}, {2, 4}, {7, 14}, {1, 2}}) {
    cases.push_back({"heads_" + text(heads) + "_of_" + text(heads_kv),
                     kForward,
                     [h = heads, hk = heads_kv](Call& c) {
                       c.problem.num_heads = h;
                       c.problem.num_heads_kv = hk;
                     },
                     TILEWISE_INVALID_ARGUMENT,
                     {"num_heads", text(heads), text(heads_kv)}});
  }
}

struct EnumField {
  const char* name;
  int32_t tilewise_problem::*field;
  int32_t first_bad;
};

void add_enums(std::vector<BadCase>& cases) {  // I6
  const EnumField fields[] = {{"direction", &tilewise_problem::direction, 2},
                              {"dtype", &tilewise_problem::dtype, 4},
                              {"align", &tilewise_problem::align, 2},
                              {"causal", &tilewise_problem::causal, 2},
                              {"has_softmax_scale", &tilewise_problem::has_softmax_scale, 2},
                              {"alibi", &tilewise_problem::alibi, 2},
                              {"deterministic", &tilewise_problem::deterministic, 2},
                              {"varlen", &tilewise_problem::varlen, 2}};
  for (const EnumField& f : fields) {
    for (const int32_t value : {f.first_bad, 255, 256, -1, kHuge32, kLowest32}) {
      cases.push_back({std::string(f.name) + "_" + text(value),
                       kForward,
                       [f, value](Call& c) { c.problem.*f.field = value; },
                       TILEWISE_INVALID_ARGUMENT,
                       {f.name, text(value)}});
    }
  }
}

void add_mask_and_scores(std::vector<BadCase>& cases) {  // I10, B101
  const auto add = [&](const std::string& name, const Kind& kind, std::function<void(Call&)> edit,
                       std::vector<std::string> words) {
    cases.push_back({name, kind, std::move(edit), TILEWISE_INVALID_ARGUMENT, std::move(words)});
  };
  for (const Kind& kind : {kForward, kBackward}) {
    const std::string prefix = kind.name() + "_";
    for (const int32_t value : {-2, -3, -100, kLowest32}) {
      add(prefix + "window_left_" + text(value), kind,
          [value](Call& c) { c.problem.window_left = value; }, {"window_left", text(value)});
      add(prefix + "window_right_" + text(value), kind,
          [value](Call& c) { c.problem.window_right = value; }, {"window_right", text(value)});
      add(prefix + "causal_window_right_" + text(value), kind,
          [value](Call& c) {
            c.problem.causal = 1;
            c.problem.window_right = value;
          },
          {"window_right", text(value)});
    }
    for (const int32_t value : {1, 5, kHuge32}) {
      add(prefix + "causal_window_right_" + text(value), kind,
          [value](Call& c) {
            c.problem.causal = 1;
            c.problem.window_right = value;
          },
          {"window_right", text(value), "causal"});
    }
    for (const auto& [name, value] : {std::pair{"nan", kNan}, {"inf", kInf}, {"-inf", -kInf}}) {
      add(prefix + "softmax_scale_" + name, kind,
          [v = value](Call& c) {
            c.problem.has_softmax_scale = 1;
            c.problem.softmax_scale = v;
          },
          {"softmax_scale", name});
      add(prefix + "softcap_" + name, kind, [v = value](Call& c) { c.problem.softcap = v; },
          {"softcap", name});
    }
    for (const float value : {-1.0f, -30.5f}) {
      add(prefix + "softcap_" + std::to_string(value), kind,
          [value](Call& c) { c.problem.softcap = value; },
          {"softcap", value == -1.0f ? "-1" : "-30.5"});
    }
    add(prefix + "softmax_scale_without_flag", kind,
        [](Call& c) { c.problem.softmax_scale = 0.5f; },
        {"softmax_scale", "0.5", "has_softmax_scale"});
  }
}

void add_options(std::vector<BadCase>& cases) {
  const auto add = [&](const std::string& name, std::function<void(Call&)> edit,
                       std::vector<std::string> words,
                       tilewise_status status = TILEWISE_INVALID_ARGUMENT) {
    cases.push_back({name, kForward, std::move(edit), status, std::move(words)});
  };
  for (const int32_t value : {2, -1, 99, kHuge32}) {
    add("device_kind_" + text(value), [value](Call& c) { c.options.device_kind = value; },
        {"device_kind", text(value)});
  }
  for (const int32_t value : {1, -1, kHuge32}) {
    add("device_index_" + text(value), [value](Call& c) { c.options.device_index = value; },
        {"device_index", text(value)});
    add(
        "cuda_" + text(value),
        [value](Call& c) {
          c.options.device_kind = TILEWISE_CUDA;
          c.options.device_index = value;
        },
        {"device_kind", "CUDA"}, TILEWISE_DEVICE_ERROR);
  }
  for (const int32_t value : {-1, -8, kLowest32, 65537, kHuge32}) {
    add("threads_" + text(value), [value](Call& c) { c.options.threads = value; },
        {"threads", text(value)});
  }
  for (const int32_t value : {1, -1, kLowest32}) {
    add("reserved_" + text(value), [value](Call& c) { c.options.reserved = value; },
        {"reserved", text(value)});
  }
  for (const char* kernel :
       {"cpu", "cpu.forward", "cpu.reference ", "sm90.forward", "\n", "CPU.REFERENCE"}) {
    add(std::string("kernel_") + kernel, [kernel](Call& c) { c.options.kernel = kernel; },
        {"kernel", kernel, "cpu.reference"});
  }
}

void add_struct_sizes(std::vector<BadCase>& cases) {  // B125
  for (const size_t value : {size_t{0}, size_t{1}, size_t{8}, sizeof(tilewise_problem) - 1,
                             sizeof(tilewise_problem) / 2, size_t{4097}, SIZE_MAX}) {
    cases.push_back({"problem_struct_size_" + std::to_string(value),
                     kForward,
                     [value](Call& c) { c.problem.struct_size = value; },
                     TILEWISE_INVALID_ARGUMENT,
                     {"problem.struct_size", std::to_string(value)}});
  }
  for (const size_t value : {size_t{0}, size_t{1}, size_t{8}, sizeof(tilewise_plan_options) - 1,
                             size_t{4097}, SIZE_MAX}) {
    cases.push_back({"options_struct_size_" + std::to_string(value),
                     kForward,
                     [value](Call& c) { c.options.struct_size = value; },
                     TILEWISE_INVALID_ARGUMENT,
                     {"options.struct_size", std::to_string(value)}});
  }
}

}  // namespace

std::vector<BadCase> bad_problems() {
  std::vector<BadCase> cases;
  add_strides(cases);
  add_sizes(cases);
  add_enums(cases);
  add_mask_and_scores(cases);
  add_options(cases);
  add_struct_sizes(cases);
  return cases;
}

}  // namespace tilewise::test
