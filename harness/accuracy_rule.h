// How a rule's worst case is kept, and the comparison with eager. Internal to harness/.
#pragma once

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "harness/accuracy.h"

namespace tilewise::harness {

// One rule on one tensor: the worst case met so far.
class Rule {
 public:
  Rule(std::string name, TensorId t) : Rule(std::move(name), name_of(t)) {}
  Rule(std::string name, std::string tensor) {
    result_.rule = std::move(name);
    result_.tensor = std::move(tensor);
  }

  // True when this is the worst so far: the caller then says where.
  bool see(double value, double limit) {
    const double ratio = value == 0 ? 0 : value / limit;
    used_ = true;
    if (ratio <= result_.worst && !(result_.where.empty() && ratio == 0)) return false;
    result_.worst = std::isnan(ratio) ? std::numeric_limits<double>::infinity() : ratio;
    result_.value = value;
    result_.limit = limit;
    return true;
  }
  void where(std::string text) { result_.where = std::move(text); }
  void add_to(std::vector<RuleResult>& out) const {
    if (used_) out.push_back(result_);
  }

 private:
  RuleResult result_;
  bool used_ = false;
};

// Rules A4 and A5 on one tensor.
void compare_with_eager(const Tensors& tensors, TensorId t, const std::vector<double>& want,
                        const std::vector<double>& eager, std::vector<RuleResult>& out);

}  // namespace tilewise::harness
