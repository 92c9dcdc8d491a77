#include "cli/table.h"

#include <algorithm>
#include <cstdio>

namespace tilewise::cli {
namespace {

// Columns on the terminal: UTF-8 continuation bytes take none.
size_t width_of(const std::string& text) {
  return static_cast<size_t>(std::count_if(text.begin(), text.end(), [](char c) {
    return (static_cast<unsigned char>(c) & 0xc0) != 0x80;
  }));
}

}  // namespace

std::string row_text(const std::vector<Column>& columns, const std::vector<std::string>& cells) {
  std::string line;
  for (size_t i = 0; i < columns.size(); ++i) {
    const std::string& cell = cells[i];
    const size_t width = width_of(cell);
    const std::string pad(width < columns[i].width ? columns[i].width - width : 0, ' ');
    if (i != 0) line += "  ";
    line += columns[i].right ? pad + cell : cell + pad;
  }
  line.erase(line.find_last_not_of(' ') + 1);
  return line;
}

std::string title_text(const std::vector<Column>& columns) {
  std::vector<std::string> titles;
  for (const Column& column : columns) titles.push_back(column.title);
  return row_text(columns, titles);
}

std::string table_text(std::vector<Column> columns,
                       const std::vector<std::vector<std::string>>& rows) {
  for (size_t i = 0; i < columns.size(); ++i) {
    columns[i].width = std::max(columns[i].width, width_of(columns[i].title));
    for (const auto& row : rows) columns[i].width = std::max(columns[i].width, width_of(row[i]));
  }
  std::string text = title_text(columns) + "\n";
  for (const auto& row : rows) text += row_text(columns, row) + "\n";
  return text;
}

std::string significant(double value, int digits) {
  char text[64];
  std::snprintf(text, sizeof text, "%.*g", digits, value);
  return text;
}

std::string fixed(double value, int decimals) {
  char text[400];
  std::snprintf(text, sizeof text, "%.*f", decimals, value);
  return text;
}

std::string percent(double fraction) { return fixed(100 * fraction, 1) + " %"; }

std::string byte_text(double bytes) {
  constexpr const char* kUnits[] = {"B", "kB", "MB", "GB", "TB", "PB", "EB"};
  size_t unit = 0;
  while (bytes >= 1000 && unit + 1 < std::size(kUnits)) {
    bytes /= 1000;
    ++unit;
  }
  return (unit == 0 ? fixed(bytes, 0) : significant(bytes)) + " " + kUnits[unit];
}

}  // namespace tilewise::cli
