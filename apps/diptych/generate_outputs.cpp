#include "apps/diptych/generate_outputs.h"

#include <cctype>
#include <charconv>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "lib/base/atomic_file.h"
#include "lib/base/error.h"
#include "lib/config/words.h"

namespace diptych {
namespace {

namespace fs = std::filesystem;

struct Pattern {
  std::string before, after;
  int digits = 0;
  bool numbered = true;  // false: one picture, `before` is its name
  std::string fill(std::int64_t index) const {
    return numbered ? fmt::format("{}{:0{}}{}", before, index, digits, after) : before;
  }
};

// "a-%03d.png" -> {"a-", ".png", 3}; nothing for a name without %.
std::optional<Pattern> parse_pattern(const std::string& name) {
  const std::size_t percent = name.find('%');
  if (percent == std::string::npos) return std::nullopt;
  const std::size_t end = name.find('d', percent);
  if (end != std::string::npos && name.find('%', end) == std::string::npos) {
    const std::string_view width = std::string_view(name).substr(percent + 1, end - percent - 1);
    int digits = 0;
    const auto [rest, error] = std::from_chars(width.data(), width.data() + width.size(), digits);
    const bool number = error == std::errc{} && rest == width.data() + width.size() && digits <= 9;
    if (width.empty() || (number && width[0] == '0')) {
      return Pattern{name.substr(0, percent), name.substr(end + 1), digits};
    }
  }
  throw InputError("--output: {} is no pattern; expected one number such as %d or %03d",
                   in_quotes(name));
}

void require_extension(const fs::path& output, std::string_view expected) {
  std::string extension = output.extension().string();
  for (char& letter : extension) {
    letter = static_cast<char>(std::tolower(static_cast<unsigned char>(letter)));
  }
  if (extension == expected) return;
  throw InputError("--output: {}: {}; expected {}", output.string(),
                   extension.empty() ? "has no extension" : "unknown extension " + in_quotes(extension),
                   expected);
}

Pattern choose_pattern(const fs::path& output, std::int64_t count, std::string_view extension) {
  const std::string name = output.filename().string();
  std::error_code ignored;
  if (name.empty() || fs::is_directory(output, ignored)) return {"", std::string(extension), 4};
  require_extension(output, extension);
  if (auto pattern = parse_pattern(name)) return *pattern;
  if (count == 1) return {name, "", 0, false};
  return {output.stem().string() + "-", output.extension().string(), 3};
}

}  // namespace

std::vector<fs::path> plan_outputs(const fs::path& output, std::int64_t count,
                                   std::string_view extension) {
  const Pattern pattern = choose_pattern(output, count, extension);
  std::error_code ignored;
  const bool is_folder = fs::is_directory(output, ignored);
  const fs::path folder = is_folder ? output : output.parent_path();
  if (!folder.empty() && !fs::is_directory(folder, ignored)) {
    throw InputError("--output: {}: no such folder: {}", output.string(), folder.string());
  }
  std::vector<fs::path> paths;
  for (std::int64_t i = 0; i < count; ++i) paths.push_back(folder / pattern.fill(i));
  // Opens and removes a temporary file beside each: can it be written?
  for (const auto& path : paths) AtomicFile{path};
  return paths;
}

}  // namespace diptych
