// Pages of the documents: their generated parts, which stand between two comments, and the commands
// that they show.
#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace CLI {
class App;
}  // namespace CLI

namespace diptych::docs {

// What is wrong with a page, each one line that begins with its place.
using Problems = std::vector<std::string>;

struct Page {
  std::filesystem::path file;
  std::string name;  // "docs/flags.md"
  std::string text;
};

// README.md and the like, and everything below docs/. Throws std::runtime_error.
std::vector<Page> read_pages(const std::filesystem::path& root);

// The name of a generated part, as its comment has it, and what makes its text.
using Parts = std::map<std::string, std::function<std::string()>, std::less<>>;

// The page with its parts made anew. Parts that a page asks for and nobody makes are problems;
// those that were made are taken out of `unused`.
std::string with_new_parts(const Page& page, const Parts& parts, std::vector<std::string>& unused,
                           Problems& problems);

// A row of a table: "| a | b |".
std::string table_row(const std::vector<std::string>& cells);
std::string table_head(const std::vector<std::string>& titles);
std::string code(std::string_view text);  // `text`; nothing of nothing

// "flags VERB" for each verb, "flags of all verbs", "flags of other programs" and "verbs".
void add_flag_parts(const CLI::App& app, Parts& parts);
// "keys PLACE", "refused keys" and "numeric ranges".
void add_stage_key_parts(Parts& parts);
// "memory plans".
void add_memory_parts(Parts& parts);

// The keys of a stage config that are no fields, and the examples that a stage config must take.
void check_stage_keys(const std::vector<Page>& pages, Problems& problems);
// Verbs and flags of the commands in ```sh blocks exist.
void check_commands(const Page& page, const CLI::App& app, Problems& problems);

}  // namespace diptych::docs
