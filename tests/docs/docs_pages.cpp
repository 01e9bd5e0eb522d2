// docs_pages [--write] ROOT: whether the generated parts of the documents below ROOT are those of
// this program, and whether the commands in them name what is there. With --write the parts are
// written anew. Exit code 0; 1 where something is out of date or wrong, each with its place.
#include <cstdio>
#include <exception>
#include <fstream>
#include <string>
#include <string_view>
#include <vector>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include "apps/diptych/command_line.h"
#include "tests/docs/pages.h"

namespace diptych::docs {
namespace {

Parts all_parts(const CLI::App& app) {
  Parts parts;
  add_flag_parts(app, parts);
  add_stage_key_parts(parts);
  add_memory_parts(parts);
  return parts;
}

int check(const std::filesystem::path& root, bool write) {
  CLI::App app;
  SharedFlags shared;
  Run run;
  build_command_line(app, shared, run);
  const Parts parts = all_parts(app);
  std::vector<std::string> unused;
  for (const auto& [name, make] : parts) unused.push_back(name);
  Problems problems;
  const std::vector<Page> pages = read_pages(root);
  for (const Page& page : pages) {
    const std::string text = with_new_parts(page, parts, unused, problems);
    check_commands(page, app, problems);
    if (text == page.text) continue;
    if (write) {
      std::ofstream(page.file, std::ios::binary) << text;
    } else {
      problems.push_back(
          fmt::format("{}: a generated part is out of date; `cmake --build BUILD "
                      "--target docs` writes it anew",
                      page.name));
    }
  }
  for (const std::string& name : unused)
    problems.push_back(fmt::format("docs: no page has the generated part '{}'", name));
  check_stage_keys(pages, problems);
  for (const std::string& problem : problems) fmt::print("{}\n", problem);
  return problems.empty() ? 0 : 1;
}

}  // namespace
}  // namespace diptych::docs

int main(int argc, char** argv) {
  const bool write = argc == 3 && std::string_view(argv[1]) == "--write";
  if (argc != 2 && !write) {
    std::fputs("docs_pages: expected [--write] ROOT\n", stderr);
    return 2;
  }
  try {
    return diptych::docs::check(argv[argc - 1], write);
  } catch (const std::exception& error) {
    fmt::print(stderr, "docs_pages: {}\n", error.what());
    return 2;
  }
}
