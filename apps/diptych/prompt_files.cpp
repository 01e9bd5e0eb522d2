#include "apps/diptych/prompt_files.h"

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <optional>
#include <utility>

#include <fmt/format.h>
#include <unistd.h>

#include "lib/base/error.h"
#include "lib/base/stdin.h"
#include "lib/base/text_file.h"
#include "lib/base/utf8.h"
#include "lib/config/fields.h"
#include "lib/config/words.h"

namespace diptych {
namespace {

constexpr std::size_t kMostPromptBytes = std::size_t{1} << 20;
constexpr char kFileMark = '@';  // in front of the name of a prompt's file

// Checks a prompt from stdin or a file (`source` says which) and removes its byte order mark and
// its last line end.
std::string checked_prompt(std::string text, const std::string& source) {
  const Setting prompt = Setting::of("prompt");
  if (text.size() > kMostPromptBytes) throw InputError(prompt, "more than 1 MiB in {}", source);
  if (text.starts_with("\xEF\xBB\xBF")) text.erase(0, 3);
  if (text.ends_with('\n')) text.pop_back();
  if (text.ends_with('\r')) text.pop_back();
  if (text.empty())
    throw InputError(prompt, "{} holds no text (an empty one is --prompt \"\")", source);
  about(prompt, [&] { check_text(text, source); });
  return text;
}

std::string read_prompt_from_stdin() {
  std::optional<std::string> read = read_text_start(STDIN_FILENO, kMostPromptBytes + 1);
  if (!read)
    throw InputError(Setting::of("prompt"), "stdin cannot be read: {}", std::strerror(errno));
  return checked_prompt(*std::move(read), "stdin");
}

}  // namespace

std::string prompt_of_file(const std::string& name) {
  if (name == kStdin) return name;
  return fmt::format("{}{}{}", kFileMark, name.starts_with(kFileMark) ? "./" : "", name);
}

std::string read_prompt(const std::string& text, const Setting& setting,
                        std::filesystem::path* file) {
  if (!text.starts_with(kFileMark)) return text;
  const std::string name = text.substr(1);
  if (name.starts_with(kFileMark)) return name;
  if (file != nullptr) *file = name;
  std::error_code ignored;
  if (!std::filesystem::exists(name, ignored)) {
    // Where there is an extension, a file was meant.
    const bool is_name = std::filesystem::path(name).has_extension();
    throw InputError(setting, "{}: no such file{}", in_quotes(name),
                     is_name ? "" : "; @@ begins a prompt that begins with @");
  }
  return checked_prompt(
      about(setting,
            [&] { return read_text_start(std::filesystem::path(name), kMostPromptBytes + 1); }),
      name);
}

void read_stdin_and_files(std::vector<InputItem>& inputs, bool stdin_is_taken) {
  const auto is_stdin = [](const InputItem& item) {
    return item.is_text() ? item.text == kStdin : item.file() == kStdin;
  };
  const auto setting_of = [](const InputItem& item) {
    return Setting::of(input_name(item.kind()));
  };
  bool used_stdin = false;
  for (const InputItem& item : inputs) {  // before any is read
    if (!is_stdin(item)) continue;
    if (stdin_is_taken)
      throw InputError(setting_of(item), "-: stdin holds the list; it is read once");
    if (std::exchange(used_stdin, true))
      throw InputError(setting_of(item), "- given twice; stdin is read once");
  }
  for (InputItem& item : inputs) {
    const bool from_stdin = is_stdin(item);
    const Setting setting = setting_of(item);
    if (from_stdin && !item.is_text()) {
      item = InputItem::of_file(item.kind(), about(setting, [] { return file_or_stdin(kStdin); }));
    } else if (from_stdin) {
      item.text = read_prompt_from_stdin();
    } else if (item.is_text()) {
      item.text = read_prompt(item.text, Setting::of("prompt"), &item.text_file);
    }
  }
}

}  // namespace diptych
