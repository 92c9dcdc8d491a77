// Every pair of features, forward and backward, under a watchdog: a run that does not return is a
// failure, not a hang of the suite.
#include <gtest/gtest.h>
#include <unistd.h>

#include <string>

#include "support.h"

namespace tilewise::suite {
namespace {

struct Feature {
  const char* words;
  const char* shape = nullptr;  // replaces the default shape
};
const Feature kFeatures[] = {
    {" causal"},
    {" window:20,7"},
    {" topleft window:-1,3"},
    {" softcap:10"},
    {" alibi"},
    {" scale:-0.4"},
    {" layout:qkv"},
    {"", "b1 sq90 sk90 h6 hk2 d32"},
    {"", "varlen:q=70,0,20:k=70,5,64 h6 hk6 d32"},
    {"", "varlen:q=70,0,20:k=70,5,64 h6 hk2 d32"},
    {"", "b1 sq90 sk90 h6 d32 dv48"},
};

bool both_words_clash(const std::string& a, const std::string& b) {
  const auto has = [](const std::string& text, const char* word) {
    return text.find(word) != std::string::npos;
  };
  return (has(a, "window") || has(a, "causal")) && (has(b, "window") || has(b, "causal")) &&
         !(has(a, "causal") && has(b, "causal"));
}

TEST(FeaturePairs, EveryPairReturns_B078_C4) {
  Thinned thinned(6);
  alarm(600);  // ends the program with a message of its own
  for (const char* dtype : {"fp32", "bf16"}) {
    for (const char* direction : {"", " backward"}) {
      for (const Feature& a : kFeatures) {
        for (const Feature& b : kFeatures) {
          if (&a > &b || (a.shape != nullptr && b.shape != nullptr)) continue;
          if (both_words_clash(a.words, b.words) || thinned.skips()) continue;
          const char* shape = a.shape != nullptr   ? a.shape
                              : b.shape != nullptr ? b.shape
                                                   : "b1 sq90 sk90 h6 d32";
          const std::string words = &a == &b ? a.words : std::string(a.words) + b.words;
          const ProblemCase c = case_of(format("{} {}{}{}", dtype, shape, words, direction));
          for (const std::string& kernel : tiled_kernels_for(c.problem)) expect_accurate(c, kernel);
          if (HasFailure()) return;
        }
      }
    }
  }
  alarm(0);
}

}  // namespace
}  // namespace tilewise::suite
