#include "lib/config/given_texts.h"

#include <algorithm>
#include <filesystem>

#include <fmt/ranges.h>

#include "lib/base/error.h"
#include "lib/base/utf8.h"
#include "lib/config/family_fields.h"
#include "lib/config/field_text.h"
#include "lib/config/hub_cache.h"
#include "lib/config/words.h"

namespace diptych {
namespace {

bool has_flag(std::span<const Field> fields, std::string_view flags) {
  return std::ranges::find(fields, flags, &Field::flags) != fields.end();
}

// The flags that have one of these names as an alias; "" where none has.
std::string_view flags_called(const std::vector<std::string_view>& names,
                              std::span<const Field> fields) {
  const auto has = [&](std::string_view aliases) {
    return std::ranges::any_of(long_names(aliases), [&](std::string_view alias) {
      return std::ranges::find(names, alias) != names.end();
    });
  };
  for (const FlagGroup& group : all_flag_groups()) {
    if (has(group.aliases)) return group.flags;
  }
  const auto found =
      std::ranges::find_if(fields, [&](const Field& field) { return has(field.aliases); });
  return found == fields.end() ? std::string_view() : found->flags;
}

}  // namespace

GivenTexts::GivenTexts(const Sources& sources)
    : sources_(sources), flag_fields_(flag_fields(sources.families)), flags_(sources.flags) {}

std::optional<Given> GivenTexts::of(std::string_view field) const {
  const std::string_view flags = all_fields()[field_index(field)].flags;
  std::optional<Given> given = from_flags(flags);
  return given ? given : from_environment(flags);
}

void GivenTexts::take_other_names(std::span<const Field> fields) {
  for (const Field& foreign : flag_fields_) {
    const auto given = flags_.find(std::string(foreign.flags));
    if (given == flags_.end() || given->second.empty() || has_flag(fields, foreign.flags)) continue;
    const std::string_view meant = flags_called(long_names(foreign.flags), fields);
    if (meant.empty()) continue;
    std::vector<std::string>& texts = flags_[std::string(meant)];
    if (!texts.empty()) {
      throw InputError("{}: given together with {}, which says the same; expected one of them",
                       flag_label(foreign.flags), flag_label(meant));
    }
    texts.insert(texts.end(), given->second.begin(), given->second.end());
    given->second.clear();
    called_[std::string(meant)] = flag_label(foreign.flags);
  }
}

std::pair<const FamilyConfig*, std::string> GivenTexts::family_of_flags() const {
  std::pair<const FamilyConfig*, std::string> found = {nullptr, ""};
  for (const FamilyConfig* family : sources_.families) {
    for (const Field& field : std::span(family->fields).subspan(all_fields().size())) {
      const bool is_given = !field.flags.empty() && from_flags(field.flags).has_value();
      // What other programs call a common flag says nothing of the family.
      if (!is_given || !flags_called(long_names(field.flags), all_fields()).empty()) continue;
      const auto owners = std::ranges::count_if(sources_.families, [&](const FamilyConfig* each) {
        return has_flag(each->fields, field.flags);
      });
      if (owners > 1 || found.first == family) continue;
      if (found.first != nullptr) return {nullptr, ""};  // two: one of them is refused later
      found = {family, flag_label(field.flags)};
    }
  }
  return found;
}

std::optional<Given> GivenTexts::from_flags(std::string_view flags) const {
  const auto found = flags_.find(std::string(flags));
  if (found == flags_.end() || found->second.empty()) return std::nullopt;
  const std::vector<std::string>& texts = found->second;
  const auto called = called_.find(std::string(flags));
  const std::string label = called == called_.end() ? flag_label(flags) : called->second;
  const auto field = std::ranges::find(flag_fields_, flags, &Field::flags);
  if (field != flag_fields_.end() && is_list(*field)) {
    const auto* list = std::get_if<TextListSlot>(&field->slot);
    const bool exact = list != nullptr && list->exact;
    // What such a list is written as has no place for other bytes.
    if (exact) {
      for (const std::string& text : texts) check_text(text, label);
    }
    return Given{exact ? list_text(texts) : fmt::format("{}", fmt::join(texts, ";")), label};
  }
  if (texts.size() > 1) {
    throw InputError("{}: given {} times ({} and {}); expected once", label, texts.size(),
                     in_quotes(texts[0]), in_quotes(texts[1]));
  }
  return located({texts[0], label}, flags);
}

Given GivenTexts::located(Given given, std::string_view flags) const {
  const auto field = std::ranges::find(flag_fields_, flags, &Field::flags);
  const auto* path = field == flag_fields_.end() ? nullptr : std::get_if<PathSlot>(&field->slot);
  if (given.text.empty() || path == nullptr || path->kind != PathKind::checkpoint) return given;
  auto kept = folders_.find(given.text);
  if (kept == folders_.end()) {
    const std::filesystem::path folder =
        model_folder(given.text, sources_.environment, given.origin);
    kept = folders_.emplace(given.text, folder.string()).first;
  }
  given.text = kept->second;
  return given;
}

std::optional<Given> GivenTexts::from_environment(std::string_view flags) const {
  std::optional<Given> given;
  for (const std::string_view name : long_names(flags)) {
    const std::string variable = environment_name(name);
    const std::optional<std::string> text = sources_.environment(variable);
    if (!text || text->empty()) continue;
    if (given && given->text != *text) {
      throw InputError("{}: {}, but {} is {}; expected one of them", variable, in_quotes(*text),
                       given->origin, in_quotes(given->text));
    }
    given = Given{*text, variable};
  }
  if (given) return located(*given, flags);
  if (flags != "--attention") return given;
  static const std::string kPythonServers = "DIFFUSION_ATTENTION_BACKEND";
  const std::optional<std::string> text = sources_.environment(kPythonServers);
  if (text && !text->empty()) given = Given{*text, kPythonServers};
  return given;
}

}  // namespace diptych
