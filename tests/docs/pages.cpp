#include "tests/docs/pages.h"

#include <algorithm>
#include <fstream>
#include <sstream>
#include <stdexcept>

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace diptych::docs {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kBegin = "<!-- generated: ", kEnd = "<!-- end of generated -->";

Page read_page(const fs::path& file, const fs::path& root) {
  std::ifstream stream(file, std::ios::binary);
  std::ostringstream text;
  text << stream.rdbuf();
  if (!stream) throw std::runtime_error(file.string() + ": cannot be read");
  return {file, fs::relative(file, root).generic_string(), text.str()};
}

std::size_t line_of(const std::string& text, std::size_t at) {
  return 1 + static_cast<std::size_t>(
                 std::count(text.begin(), text.begin() + std::ptrdiff_t(at), '\n'));
}

}  // namespace

std::vector<Page> read_pages(const fs::path& root) {
  std::vector<fs::path> files;
  for (const auto& entry : fs::directory_iterator(root)) files.push_back(entry.path());
  for (const auto& entry : fs::recursive_directory_iterator(root / "docs"))
    files.push_back(entry.path());
  std::erase_if(files, [](const fs::path& file) { return file.extension() != ".md"; });
  std::ranges::sort(files);
  std::vector<Page> pages;
  for (const fs::path& file : files) pages.push_back(read_page(file, root));
  return pages;
}

std::string with_new_parts(const Page& page, const Parts& parts, std::vector<std::string>& unused,
                           Problems& problems) {
  std::string text;
  std::size_t done = 0;
  for (;;) {
    const std::size_t begin = page.text.find(kBegin, done);
    if (begin == std::string::npos) return text + page.text.substr(done);
    const std::string place = fmt::format("{}:{}", page.name, line_of(page.text, begin));
    const std::size_t name_at = begin + kBegin.size(), name_end = page.text.find(" -->", name_at);
    const std::size_t end = page.text.find(kEnd, begin);
    if (name_end == std::string::npos || end == std::string::npos) {
      problems.push_back(fmt::format("{}: no \"{}\" behind it", place, kEnd));
      return text + page.text.substr(done);
    }
    const std::string name = page.text.substr(name_at, name_end - name_at);
    const auto part = parts.find(name);
    if (part == parts.end()) {
      problems.push_back(fmt::format("{}: unknown part '{}'", place, name));
      text += page.text.substr(done, end - done);
    } else {
      text += page.text.substr(done, begin - done) + std::string(kBegin) + name + " -->\n\n" +
              part->second() + "\n";
      std::erase(unused, name);
    }
    text += kEnd;
    done = end + kEnd.size();
  }
}

std::string table_row(const std::vector<std::string>& cells) {
  std::string row = "|";
  for (const std::string& cell : cells) {
    row += ' ';
    for (const char letter : cell)
      row += letter == '|' ? std::string("\\|") : std::string(1, letter);
    row += cell.empty() ? "|" : " |";
  }
  return row + "\n";
}

std::string table_head(const std::vector<std::string>& titles) {
  std::string rule = "|";
  for (std::size_t i = 0; i < titles.size(); ++i) rule += "---|";
  return table_row(titles) + rule + "\n";
}

std::string code(std::string_view text) {
  return text.empty() ? "" : fmt::format("`{}`", text);
}

}  // namespace diptych::docs
