#include "lib/config/resolve.h"

#include <algorithm>
#include <utility>

#include <fmt/ranges.h>

#include "lib/base/error.h"
#include "lib/config/stage_config.h"
#include "lib/config/task.h"
#include "lib/config/words.h"

namespace diptych {
namespace {

struct Given {
  std::string text, origin;
};

class Resolver {
 public:
  explicit Resolver(const Sources& sources) : sources_(sources) {
    resolved_.origins.assign(all_fields().size(), "default");
    resolved_.of_stage_config.assign(all_fields().size(), false);
  }

  Resolved run() {
    const std::vector<Assignment> stage_values = read_file();
    apply_file(stage_values, false);
    apply([this](std::string_view flags) { return from_environment(flags); });
    apply_file(stage_values, true);
    apply([this](std::string_view flags) { return from_flags(flags); });
    apply_inputs();
    return std::move(resolved_);
  }

 private:
  void set(std::size_t index, const std::string& text, const std::string& where,
           const std::string& origin, bool from_stage_config = false) {
    assign(all_fields()[index], resolved_.options, text, where);
    resolved_.note(index, origin, from_stage_config);
  }

  void apply_inputs() {
    std::vector<FlagInput> inputs = sources_.inputs;
    const auto from_variable = [&](const char* variable, bool is_image) {
      const auto text = sources_.environment(variable);
      const bool given = std::ranges::any_of(
          sources_.inputs, [&](const FlagInput& item) { return item.is_image == is_image; });
      return given || !text || text->empty() ? std::nullopt : text;
    };
    std::string origin = inputs.empty() ? "" : "--prompt/--image";
    // Each kind has one source.
    const auto note = [&](const char* variable, std::string& place) {
      origin += (origin.empty() ? "" : ", ") + std::string(variable);
      place = variable;
    };
    if (const auto images = from_variable("DIPTYCH_IMAGE", true)) {
      std::size_t at = 0;
      if (split_list(*images).empty())
        throw InputError("DIPTYCH_IMAGE: found {}, expected files of pictures", in_quotes(*images));
      for (const std::string_view path : split_list(*images))
        inputs.insert(inputs.begin() + static_cast<std::ptrdiff_t>(at++),
                      {true, std::string(path)});
      note("DIPTYCH_IMAGE", resolved_.image_place);
    }
    if (const auto prompt = from_variable("DIPTYCH_PROMPT", false)) {
      inputs.push_back({false, *prompt});
      note("DIPTYCH_PROMPT", resolved_.prompt_place);
    }
    if (inputs.empty()) return;
    std::vector<InputItem>& items = resolved_.options.run.inputs;
    for (const FlagInput& input : inputs) {
      if (input.is_image && input.text.empty()) {
        throw InputError("{}: is empty; expected the file of a picture", resolved_.image_place);
      }
      if (!input.is_image) check_prompt(input.text, resolved_.prompt_place);
      items.push_back(input.is_image ? InputItem{{}, input.text} : InputItem{input.text, {}});
    }
    resolved_.note(field_index("inputs"), origin);
  }

  // The stage config of the strongest source that names one, and the demo where none does.
  std::vector<Assignment> read_file() {
    const auto fields = all_fields();
    const Field& config = fields[field_index("config")];
    const Field& model = fields[field_index("model")];
    std::optional<Given> file = from_flags(config.flags);
    if (!file) file = from_environment(config.flags);
    const bool own_model = from_flags(model.flags) || from_environment(model.flags);
    if (!file && !own_model) {
      if (!sources_.demo) {
        throw InputError(
            "-c/--config: not given, and stage_configs/demo is not there; give a stage config");
      }
      resolved_.uses_demo = true;
      resolved_.options.config = *sources_.demo;
      return read_stage_config(*sources_.demo, sources_.overrides);
    }
    if (!file) {
      if (!sources_.overrides.empty())
        throw InputError("--set: edits a stage config; give one with -c");
      return {};
    }
    set(field_index("config"), file->text, file->origin, file->origin);
    require_stage_config(resolved_.options.config, file->origin);
    return read_stage_config(resolved_.options.config, sources_.overrides);
  }

  // What is wrong inside a file is named by its place there.
  static void require_stage_config(const std::filesystem::path& file, const std::string& origin) {
    std::error_code error;
    if (std::filesystem::exists(file, error)) return;
    throw InputError("{}: {}: {}", origin, file.string(), error ? error.message() : "no such file");
  }

  void apply_file(const std::vector<Assignment>& values, bool from_set) {
    for (const Assignment& value : values) {
      if (value.from_set == from_set && !value.of_edits)
        set(value.field, value.text, value.where, value.origin, !from_set);
    }
    for (const Assignment& value : values) {
      if (value.from_set != from_set || !value.of_edits) continue;
      Options checked;
      assign(all_fields()[value.field], checked, value.text, value.where);
      resolved_.edit_values.push_back({value.field, value.text, value.where, value.origin,
                                       resolved_.origins[value.field], !from_set});
    }
  }

  // One strength of source: groups first, then their fields, which must not repeat them.
  template <typename Lookup>
  void apply(Lookup lookup) {
    std::map<std::string_view, std::string> by_group;  // field -> origin
    for (const FlagGroup& group : all_flag_groups()) {
      const std::optional<Given> given = lookup(group.flags);
      if (!given) continue;
      for (const auto& [name, text] : group.expand(given->text, given->origin)) {
        const std::size_t field = field_index(name);
        set(field, text, value_place(all_fields()[field], given->origin), given->origin);
        by_group[name] = given->origin;
      }
    }
    for (std::size_t i = 0; i < all_fields().size(); ++i) {
      const Field& field = all_fields()[i];
      if (field.flags.empty()) continue;
      const std::optional<Given> given = lookup(field.flags);
      if (!given) continue;
      if (const auto group = by_group.find(field.name); group != by_group.end()) {
        throw InputError("{}: given together with {}; expected one of them", given->origin,
                         group->second);
      }
      set(i, given->text, given->origin, given->origin);
    }
  }

  std::optional<Given> from_flags(std::string_view flags) const {
    const auto found = sources_.flags.find(std::string(flags));
    if (found == sources_.flags.end() || found->second.empty()) return std::nullopt;
    const std::vector<std::string>& texts = found->second;
    const std::string label = flag_label(flags);
    const auto fields = all_fields();
    const auto field = std::ranges::find(fields, flags, &Field::flags);
    if (field != fields.end() && std::holds_alternative<TextListSlot>(field->slot)) {
      return Given{fmt::format("{}", fmt::join(texts, ";")), label};
    }
    if (texts.size() > 1) {
      throw InputError("{}: given {} times ({} and {}); expected once", label, texts.size(),
                       in_quotes(texts[0]), in_quotes(texts[1]));
    }
    return Given{texts[0], label};
  }

  // An empty variable counts as none.
  std::optional<Given> from_environment(std::string_view flags) const {
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
    if (given || flags != "--attention") return given;
    static const std::string kPythonServers = "DIFFUSION_ATTENTION_BACKEND";
    const std::optional<std::string> text = sources_.environment(kPythonServers);
    if (text && !text->empty()) given = Given{*text, kPythonServers};
    return given;
  }

  const Sources& sources_;
  Resolved resolved_;
};

// A value as YAML would have it: in quotes where it could be read as something else.
std::string yaml_value(const nlohmann::ordered_json& value) {
  if (!value.is_string()) return value.dump();
  const auto text = value.get<std::string>();
  constexpr std::string_view kHarmless =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_./:-";
  const bool plain = !text.empty() && text.find_first_not_of(kHarmless) == std::string::npos &&
                     std::string_view("-:").find(text.front()) == std::string_view::npos &&
                     text.back() != ':';
  return plain ? text
               : value.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

}  // namespace

std::string value_place(const Field& field, std::string_view origin) {
  std::vector<std::string> own = {std::string(field.name)};
  for (const std::string_view flag : long_names(field.flags)) {
    own.emplace_back(flag);
    own.push_back(environment_name(flag));
    own.push_back(with_underscores(flag));
  }
  const bool is_own =
      std::ranges::any_of(own, [&](const std::string& name) { return origin.ends_with(name); });
  return is_own ? std::string(origin) : fmt::format("{}: {}", origin, field.name);
}

std::optional<std::size_t> field_of_setting(std::string_view name) {
  if (name == "prompt" || name == "image") return field_index("inputs");
  const auto fields = all_fields();
  const auto found = std::ranges::find(fields, name, &Field::name);
  if (found == fields.end()) return std::nullopt;
  return static_cast<std::size_t>(found - fields.begin());
}

SettingView setting_view(const Setting& setting, const Resolved& resolved) {
  const auto index = field_of_setting(setting.name);
  if (!index || !setting.given) return {setting.label};
  const std::string& origin = resolved.origins[*index];
  if (origin == "default") return {setting.label, true};
  if (setting.name == "prompt") return {resolved.prompt_place};
  if (setting.name == "image") return {resolved.image_place};
  const Field& field = all_fields()[*index];
  // One flag stands for all of them.
  if (std::holds_alternative<AttentionSlot>(field.slot)) return {origin};
  return {origin == flag_label(field.flags) ? setting.label : value_place(field, origin)};
}

std::string error_text(const InputError& error, const Resolved& resolved) {
  const SettingProblem* problem = error.problem();
  return problem == nullptr ? error.what()
                            : problem_text(*problem, setting_view(problem->setting, resolved));
}

Resolved resolve_sources(const Sources& sources) {
  return Resolver(sources).run();
}

Resolved resolve(const Sources& sources) {
  Resolved resolved = resolve_sources(sources);
  settle_task(resolved);
  return resolved;
}

std::string config_table(const Resolved& resolved) {
  constexpr std::size_t kColumn = 40;
  std::string table;
  for (std::size_t i = 0; i < all_fields().size(); ++i) {
    const Field& field = all_fields()[i];
    const bool of_input = resolved.options.run.sampling.size_of_input &&
                          (field.name == "width" || field.name == "height");
    const std::string line = fmt::format(
        "{}: {}", field.name, of_input ? "auto" : yaml_value(value_json(field, resolved.options)));
    table += fmt::format("{:<{}}  # {}\n", line, kColumn,
                         of_input ? "the last picture's" : resolved.origins[i]);
  }
  return table;
}

}  // namespace diptych
