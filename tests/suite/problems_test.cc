// The problem files: every line on every kernel; and the table of public bug cases.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <regex>
#include <set>
#include <sstream>
#include <string>

#include "support.h"

namespace tilewise::suite {
namespace {

const std::filesystem::path kSource = TILEWISE_SOURCE_DIR;

TEST(Problems, EveryRegressionOnEveryKernel) {
  const std::string path = kSource / "tests/problems/regressions.txt";
  const auto cases = harness::parse_case_file(path);
  ASSERT_TRUE(cases.ok()) << cases.status().message();
  ASSERT_GT(cases->size(), 30u);
  for (const ProblemCase& c : *cases) {
    expect_accurate(c);
    for (const std::string& kernel : tiled_kernels_for(c.problem)) expect_accurate(c, kernel);
  }
}

TEST(Problems, EveryProblemFileParses) {
  for (const auto& entry : std::filesystem::directory_iterator(kSource / "tests/problems")) {
    if (entry.path().extension() != ".txt") continue;
    const auto cases = harness::parse_case_file(entry.path());
    EXPECT_TRUE(cases.ok()) << entry.path() << ": " << cases.status().message();
  }
}

std::string text_of(const std::filesystem::path& path) {
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

// Rows of tests/suite/README.md that say "covered" name an id that some test or problem file
// carries; and no id is missing from the table.
TEST(BugCases, CoveredRowsAreFoundInATest) {
  std::string tests;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(kSource / "tests")) {
    const auto extension = entry.path().extension();
    if (extension == ".cc" || extension == ".txt" || extension == ".h" || extension == ".c" ||
        extension == ".py" || extension == ".sh") {
      tests += text_of(entry.path());
    }
  }
  for (const char* tool : {"check_symbols", "check_isa_symbols"}) {
    tests += text_of(kSource / "tools" / tool);
  }
  std::istringstream table(text_of(kSource / "tests/suite/README.md"));
  const std::regex row(R"(\| (B\d{3}) \| (covered|later|gpu) \|.*)");
  std::set<std::string> ids;
  for (std::string line; std::getline(table, line);) {
    std::smatch match;
    if (!std::regex_match(line, match, row)) {
      EXPECT_FALSE(line.starts_with("| B")) << "not a row: " << line;
      continue;
    }
    EXPECT_TRUE(ids.insert(match[1]).second) << match[1] << " twice";
    if (match[2] == "covered") {
      EXPECT_NE(tests.find(match[1].str()), std::string::npos) << match[1] << " is in no test";
    }
  }
  EXPECT_EQ(ids.size(), 93u);
}

}  // namespace
}  // namespace tilewise::suite
