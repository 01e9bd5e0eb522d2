// How help looks, and `diptych help [VERB]`, which prints what --help does.
#include <algorithm>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include "apps/diptych/verbs.h"
#include "lib/base/error.h"
#include "lib/config/words.h"

namespace diptych {
namespace {

// Descriptions in lines of kColumns at most, but for longer words.
class HelpFormat : public CLI::Formatter {
 public:
  std::string make_option_desc(const CLI::Option* option) const override {
    constexpr std::size_t kColumns = 100;
    const std::size_t width = kColumns - get_column_width();
    const std::string text = CLI::Formatter::make_option_desc(option);
    std::string lines;
    for (std::string_view rest = text; !rest.empty();) {
      std::size_t end = rest.size();
      if (end > width) {
        end = rest.rfind(' ', width);
        if (end == std::string_view::npos) end = std::min(rest.find(' '), rest.size());
      }
      if (!lines.empty()) lines += '\n';
      lines += rest.substr(0, end);
      rest.remove_prefix(std::min(end + 1, rest.size()));
    }
    return lines;
  }
};

// `app` itself would print the help of the chosen verb, which is this one.
std::string help_of_all(const CLI::App& app) {
  return app.get_formatter()->make_help(&app, app.get_name(), CLI::AppFormatMode::Normal);
}

int print_help(const CLI::App& app, const std::string& name) {
  if (name.empty()) {
    fmt::print("{}", help_of_all(app));
    return 0;
  }
  std::vector<std::string> names;
  for (const CLI::App* verb : app.get_subcommands({})) {
    if (verb->get_name() == name) {
      fmt::print("{}", verb->help(app.get_name()));
      return 0;
    }
    names.push_back(verb->get_name());
  }
  const std::vector<std::string_view> known(names.begin(), names.end());
  throw InputError("help: unknown verb {}{}", in_quotes(name), suggestion(name, known));
}

}  // namespace

std::shared_ptr<CLI::FormatterBase> help_format() {
  return std::make_shared<HelpFormat>();
}

void add_help(CLI::App& app, Run& run) {
  std::string verbs;
  for (const CLI::App* each : app.get_subcommands({}))
    verbs += (verbs.empty() ? "" : "|") + each->get_name();
  CLI::App* verb = app.add_subcommand("help", "the help of a verb; without one, the list of verbs");
  const auto name = std::make_shared<std::string>();
  verb->add_option("verb", *name, "such as generate; without it, the list of verbs")
      ->type_name(verbs);
  verb->footer("Example:\n  diptych help generate");
  verb->callback(
      [name, &app, &run] { run = [name, &app](Log&) { return print_help(app, *name); }; });
}

}  // namespace diptych
