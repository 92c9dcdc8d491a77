// Columns of text that line up.
#pragma once

#include <string>
#include <vector>

namespace tilewise::cli {

struct Column {
  std::string title;
  bool right = false;  // numbers
  size_t width = 0;    // at least; grows with the rows given to Table
};

// All rows are known: the columns are as wide as needed. Lines end with a newline.
std::string table_text(std::vector<Column> columns,
                       const std::vector<std::vector<std::string>>& rows);
// One line for columns whose width is fixed, to be printed as results come; no newline.
std::string row_text(const std::vector<Column>& columns, const std::vector<std::string>& cells);
std::string title_text(const std::vector<Column>& columns);

// "1.234" with so many significant digits, without an exponent where it would not help.
std::string significant(double value, int digits = 3);
std::string fixed(double value, int decimals);
std::string percent(double fraction);  // "87.1 %"
std::string byte_text(double bytes);   // "1.96 MB"

}  // namespace tilewise::cli
