// What the harness' own tests share.
#pragma once

#include <gtest/gtest.h>

#include <string_view>

#include "core/problem.h"
#include "harness/buffers.h"
#include "harness/data.h"

namespace tilewise::harness {

inline ProblemCase case_of(std::string_view line) {
  Result<ProblemCase> c = parse_case(line);
  EXPECT_TRUE(c.ok()) << line << ": " << c.status().message();
  return c ? *c : ProblemCase();
}

inline Tensors filled(std::string_view line) {
  Tensors t(case_of(line));
  const Status s = fill_inputs(t);
  EXPECT_TRUE(s.ok()) << s.message();
  return t;
}

// q = k = v = do = 0.
inline Tensors zeroed(std::string_view line) {
  Tensors t = filled(line);
  for (const TensorId id : {TensorId::kQ, TensorId::kK, TensorId::kV, TensorId::kDo}) {
    if (t.pointer(id) == nullptr) continue;
    const Extents e = t.problem().extents(id);
    const std::vector<double> row(static_cast<std::size_t>(e.dim));
    for (int64_t i = 0; i < e.batch * e.seqlen * e.heads; ++i) {
      t.set_row(id, i / e.heads / e.seqlen, i / e.heads % e.seqlen, i % e.heads, row.data());
    }
  }
  return t;
}

}  // namespace tilewise::harness
