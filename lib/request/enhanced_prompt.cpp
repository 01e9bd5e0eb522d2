#include "lib/request/enhanced_prompt.h"

#include <algorithm>
#include <utility>

#include "lib/base/error.h"
#include "lib/base/text_file.h"
#include "lib/base/utf8.h"
#include "lib/config/hub_cache.h"

namespace diptych {
namespace {

constexpr std::string_view kBlanks = " \t\r\n";

std::string_view trimmed(std::string_view text) {
  const std::size_t begin = text.find_first_not_of(kBlanks);
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(kBlanks) - begin + 1);
}

InputItem& text_of(RunConfig& run) {
  return *std::ranges::find_if(run.inputs, &InputItem::is_text);
}

}  // namespace

bool enhances(const Options& options) {
  return options.enhance.on && !options.run.answers();
}

void require_enhancer(const Options& options) {
  if (!options.enhance.model.empty()) return;
  throw InputError(Setting::absent("enhancer"),
                   SettingText{"not given; expected the folder of a language model for ",
                               Setting::of("enhance_prompt")});
}

void require_enhanceable(const Options& options) {
  const RunConfig& run = options.run;
  const Setting enhance = Setting::of("enhance_prompt");
  require_enhancer(options);
  const auto texts = std::ranges::count_if(run.inputs, &InputItem::is_text);
  if (texts != 1) {
    throw InputError(
        Setting::of("prompt"),
        SettingText{fmt::format("found {} texts; expected one with ", texts), enhance});
  }
  if (trimmed(run.prompt()).empty()) {
    throw InputError(Setting::of("prompt"),
                     SettingText{"is empty; expected a text to rewrite with ", enhance});
  }
}

std::string enhance_instructions(const Options& options) {
  const EnhanceConfig& enhance = options.enhance;
  if (enhance.instructions.empty()) {
    return options.run.makes == MediaKind::clip ? enhance.clip_instructions
                                                : enhance.picture_instructions;
  }
  const Setting setting = Setting::of("enhance_instructions");
  constexpr std::size_t kMostBytes = std::size_t{1} << 20;
  const std::string file = enhance.instructions.string();
  std::string text =
      about(setting, [&] { return read_text_start(enhance.instructions, kMostBytes + 1); });
  if (text.size() > kMostBytes) throw InputError(setting, "{}: more than 1 MiB", file);
  if (text.starts_with("\xEF\xBB\xBF")) text.erase(0, 3);
  about(setting, [&] { check_text(text, file); });
  text = trimmed(text);
  if (text.empty()) throw InputError(setting, "{}: holds no text", file);
  return text;
}

std::string prompt_of_answer(std::string_view answer) {
  std::string prompt;
  for (std::string_view rest = trimmed(answer); !rest.empty();) {
    const std::size_t end = std::min(rest.find_first_of(kBlanks), rest.size());
    prompt += (prompt.empty() ? "" : " ");
    prompt += rest.substr(0, end);
    rest = trimmed(rest.substr(end));
  }
  const bool quoted = prompt.size() > 1 && prompt.front() == '"' && prompt.back() == '"' &&
                      std::ranges::count(prompt, '"') == 2;
  return quoted ? std::string(trimmed(std::string_view(prompt).substr(1, prompt.size() - 2)))
                : prompt;
}

void set_enhanced_prompt(Options& options, std::string prompt, std::string instructions) {
  const EnhanceConfig& enhance = options.enhance;
  InputItem& text = text_of(options.run);
  const auto name_of_folder = [](const std::filesystem::path& folder) {
    return folder.empty() ? std::string() : model_name(folder);
  };
  options.enhanced =
      EnhancedPrompt{std::exchange(text.text, std::move(prompt)), name_of_folder(enhance.model),
                     name_of_folder(enhance.drafter), std::move(instructions), enhance.max_tokens};
}

}  // namespace diptych
