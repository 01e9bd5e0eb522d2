#include "lib/config/resolve.h"

#include <algorithm>
#include <utility>

#include <fmt/ranges.h>

#include "lib/base/error.h"
#include "lib/base/folder.h"
#include "lib/base/utf8.h"
#include "lib/config/family_fields.h"
#include "lib/config/field_text.h"
#include "lib/config/flag_hints.h"
#include "lib/config/hub_cache.h"
#include "lib/config/result_formats.h"
#include "lib/config/stage_config.h"
#include "lib/config/task.h"
#include "lib/config/words.h"

namespace diptych {
namespace {

namespace fs = std::filesystem;

struct Given {
  std::string text, origin;
};

class Resolver {
 public:
  explicit Resolver(const Sources& sources)
      : sources_(sources), flag_fields_(flag_fields(sources.families)), flags_(sources.flags) {}

  Resolved run() {
    const std::vector<Assignment> stage_values = read_file();
    take_other_names();
    refuse_flags_of_other_families();
    apply_file(stage_values, false);
    // Variables may serve requests to other families.
    apply([this](std::string_view flags) { return from_environment(flags); }, Unused::ignored);
    apply_file(stage_values, true);
    apply([this](std::string_view flags) { return from_flags(flags); }, Unused::refused);
    apply_inputs();
    resolved_.options.run.negative_file = sources_.negative_file;
    return std::move(resolved_);
  }

 private:
  enum class Unused { ignored, refused };  // values that the family has no use for

  void set(std::size_t index, const std::string& text, const std::string& where,
           const std::string& origin, bool from_stage_config = false) {
    if (std::holds_alternative<TaskSlot>(fields()[index].slot)) refuse_unknown_video(text, where);
    assign(fields()[index], resolved_.options, text, where);
    resolved_.note(index, origin, from_stage_config);
  }

  // The nearest known task would be no help.
  void refuse_unknown_video(const std::string& task, const std::string& where) const {
    if (!is_video_task(task) || resolved_.options.run.family->find_task(task) != nullptr) return;
    throw InputError("{}: {}: {}", where, in_quotes(task), who_makes(kVideos, sources_.families));
  }

  std::span<const Field> fields() const { return fields_of(resolved_.options); }

  void start_with(const FamilyConfig& family) {
    const bool uses_demo = resolved_.uses_demo;
    resolved_ = without_sources(default_options(family));
    resolved_.uses_demo = uses_demo;
  }

  // `tree`: the stage config's, null without one.
  void choose_family(const YamlNode* tree) {
    const FamilyConfig& first = *sources_.families.at(0);
    if (const YamlEntry* name = tree == nullptr ? nullptr : tree->find("pipeline")) {
      const auto named = std::ranges::find(sources_.families, std::string_view(name->value.text),
                                           [](const FamilyConfig* each) { return each->name; });
      if (named == sources_.families.end()) return start_with(first);
      refuse_model_of_another(**named, *tree, name->value.where);
      return start_with(**named);
    }
    const std::optional<Given> model = find_model(tree);
    const FamilyConfig* owner = model ? owner_of(model->text) : nullptr;
    if (model && !model->text.empty() && owner == nullptr) {
      refuse_part(*model);
      // That of a stage config is told of where it is opened.
      if (find_model(nullptr)) refuse_unknown_model(*model);
    }
    start_with(owner == nullptr ? first : *owner);
    if (owner != nullptr && owner != &first)
      resolved_.note(field_index("pipeline"), fmt::format("the folder of {}", model->origin));
  }

  // A folder or a file of a checkpoint that is known.
  void refuse_part(const Given& model) const {
    std::error_code error;
    const std::filesystem::path whole =
        std::filesystem::weakly_canonical(model.text, error).parent_path();
    if (error || !std::filesystem::exists(model.text, error)) return;
    const FamilyConfig* owner = owner_of(whole);
    if (owner == nullptr) return;
    throw InputError("{}: {}: is a part of a checkpoint of {}; expected its folder, {}",
                     model.origin, model.text, owner->name, whole.string());
  }

  [[noreturn]] void refuse_unknown_model(const Given& model) const {
    require_folder(model.text, model.origin);
    throw InputError("{}: {}", model.origin, about_unknown_folder(model.text, sources_.families));
  }

  // A stage config names the family; the folder may be named elsewhere.
  void refuse_model_of_another(const FamilyConfig& family, const YamlNode& tree,
                               const YamlWhere& where) const {
    const std::optional<Given> model = find_model(&tree);
    const FamilyConfig* owner = model ? owner_of(model->text) : nullptr;
    if (owner == nullptr || owner == &family) return;
    throw InputError("{}: {}: holds a checkpoint of the family {}, but {} is for the family {}",
                     model->origin, model->text, owner->name, where.text(), family.name);
  }

  std::optional<Given> find_model(const YamlNode* tree) const {
    const Field& field = all_fields()[field_index("model")];
    std::optional<Given> model = from_flags(field.flags);
    if (!model) model = from_environment(field.flags);
    if (model || tree == nullptr) return model;
    const YamlEntry* entry = tree->find(field.yaml);
    if (entry == nullptr || entry->value.kind != YamlNode::Kind::scalar) return std::nullopt;
    return Given{path_text(entry->value, field.yaml), entry->value.where.text()};
  }

  // Config files that cannot be read are told of where the model is opened.
  const FamilyConfig* owner_of(const std::filesystem::path& folder) const {
    const auto owns = [&](const FamilyConfig* family) {
      try {
        return family->owns(folder);
      } catch (const InputError&) {
        return false;
      } catch (const std::filesystem::filesystem_error&) {
        return false;
      }
    };
    const auto owner = std::ranges::find_if(sources_.families, owns);
    return owner == sources_.families.end() ? nullptr : *owner;
  }

  // What other programs call a flag may be another family's own; here it stays another name.
  void take_other_names() {
    for (const Field& foreign : flag_fields_) {
      const auto given = flags_.find(std::string(foreign.flags));
      if (given == flags_.end() || given->second.empty() || is_flag_of_family(foreign.flags))
        continue;
      const std::string_view meant = flags_called(long_names(foreign.flags));
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

  // The flags that have one of these names as an alias; "" where none has.
  std::string_view flags_called(const std::vector<std::string_view>& names) const {
    const auto has = [&](std::string_view aliases) {
      return std::ranges::any_of(long_names(aliases), [&](std::string_view alias) {
        return std::ranges::find(names, alias) != names.end();
      });
    };
    for (const FlagGroup& group : all_flag_groups()) {
      if (has(group.aliases)) return group.flags;
    }
    const auto found =
        std::ranges::find_if(fields(), [&](const Field& field) { return has(field.aliases); });
    return found == fields().end() ? std::string_view() : found->flags;
  }

  // The only family that has a flag which was given, and that flag; null where there is none.
  std::pair<const FamilyConfig*, std::string> family_of_flags() const {
    std::pair<const FamilyConfig*, std::string> found = {nullptr, ""};
    const auto has = [](const FamilyConfig* family, std::string_view flags) {
      return std::ranges::find(family->fields, flags, &Field::flags) != family->fields.end();
    };
    for (const FamilyConfig* family : sources_.families) {
      for (const Field& field : std::span(family->fields).subspan(all_fields().size())) {
        const bool is_given = !field.flags.empty() && from_flags(field.flags).has_value();
        // What other programs call a common flag says nothing of the family.
        if (!is_given || !flags_called(long_names(field.flags)).empty()) continue;
        const auto others = std::ranges::count_if(
            sources_.families, [&](const FamilyConfig* each) { return has(each, field.flags); });
        if (others > 1 || found.first == family) continue;
        if (found.first != nullptr) return {nullptr, ""};  // refuse_flags_of_other_families()
        found = {family, flag_label(field.flags)};
      }
    }
    return found;
  }

  // Their variables are ignored: these may serve other requests.
  void refuse_flags_of_other_families() const {
    for (const FamilyConfig* family : sources_.families) {
      for (const Field& field : family->fields) {
        if (field.flags.empty() || is_flag_of_family(field.flags)) continue;
        if (const auto given = from_flags(field.flags)) {
          throw InputError("{}: belongs to the family {}, found the family {}", given->origin,
                           family->name, resolved_.options.run.family->name);
        }
      }
    }
  }
  bool is_flag_of_family(std::string_view flags) const {
    return std::ranges::find(fields(), flags, &Field::flags) != fields().end();
  }

  // Each kind has one source: its flags, else its variable. That of a kind which the family does
  // not read may serve requests to other families.
  std::optional<Given> input_variable(MediaKind kind) const {
    const bool given =
        std::ranges::find(sources_.inputs, kind, &FlagInput::kind) != sources_.inputs.end();
    if (given || !resolved_.options.run.family->reads(kind)) return std::nullopt;
    std::string name = environment_name(input_name(kind));
    const std::optional<std::string> text = sources_.environment(name);
    if (!text || text->empty()) return std::nullopt;
    return Given{*text, std::move(name)};
  }

  void apply_inputs() {
    std::vector<FlagInput> inputs;  // files of variables come first, texts of variables last
    std::string origin = sources_.inputs.empty() ? "" : "--prompt/--image";
    if (std::ranges::find(sources_.inputs, MediaKind::clip, &FlagInput::kind) !=
        sources_.inputs.end())
      origin += "/--video";
    const auto note = [&](MediaKind kind, const std::string& variable) {
      origin += (origin.empty() ? "" : ", ") + variable;
      resolved_.input_places[kind] = variable;
    };
    for (const MediaKind kind : {MediaKind::picture, MediaKind::clip}) {
      const std::optional<Given> files = input_variable(kind);
      if (!files) continue;
      if (split_list(files->text).empty())
        throw InputError("{}: found {}, expected files of {}", files->origin,
                         in_quotes(files->text), kind_name(kind));
      for (const std::string_view path : split_list(files->text))
        inputs.push_back({kind, std::string(path)});
      note(kind, files->origin);
    }
    inputs.insert(inputs.end(), sources_.inputs.begin(), sources_.inputs.end());
    if (const std::optional<Given> prompt = input_variable(MediaKind::text)) {
      inputs.push_back({MediaKind::text, prompt->text});
      note(MediaKind::text, prompt->origin);
    }
    if (inputs.empty()) return;
    for (const FlagInput& input : inputs) take_input(input);
    resolved_.note(field_index("inputs"), origin);
  }

  void take_input(const FlagInput& input) {
    const std::string& place = resolved_.input_places[input.kind];
    std::vector<InputItem>& items = resolved_.options.run.inputs;
    if (input.kind == MediaKind::text) {
      check_text(input.text, place);
      items.push_back({input.text, {}});
      return;
    }
    if (input.text.empty())
      throw InputError("{}: is empty; expected the file of a {}", place,
                       input.kind == MediaKind::clip ? "video" : "picture");
    items.push_back(InputItem::of_file(input.kind, input.text));
  }

  // The stage config of the strongest source that names one, and the demo where none does.
  std::vector<Assignment> read_file() {
    const Field& config = all_fields()[field_index("config")];
    const Field& model = all_fields()[field_index("model")];
    std::optional<Given> file = from_flags(config.flags);
    if (!file) file = from_environment(config.flags);
    const bool own_model = from_flags(model.flags) || from_environment(model.flags);
    if (!file && !own_model) return read_demo();
    if (!file) {
      if (!sources_.overrides.empty())
        throw InputError("--set: edits a stage config; give one with -c");
      choose_family(nullptr);
      return {};
    }
    Options named;
    assign(config, named, file->text, file->origin);
    require_stage_config(named.config, file->origin);
    const YamlNode tree = load_stage_config(named.config, sources_.overrides);
    choose_family(&tree);
    set(field_index("config"), file->text, file->origin, file->origin);
    return read_stage_tree(tree, *resolved_.options.run.family);
  }

  std::vector<Assignment> read_demo() {
    const auto [family, flag] = family_of_flags();
    if (family == nullptr) refuse_task_of_no_demo();
    const fs::path* demo = find_demo(family);
    if (demo == nullptr && family != nullptr) {
      require_dummy_weights(*family, flag);
      start_with(*family);
      resolved_.note(field_index("pipeline"), flag);
      return {};
    }
    if (demo == nullptr) {
      throw InputError(
          "-c/--config: not given, and stage_configs/demo was not found; give a stage config");
    }
    resolved_.uses_demo = true;
    const YamlNode tree = load_stage_config(*demo, sources_.overrides);
    choose_family(&tree);
    resolved_.options.config = *demo;
    return read_stage_tree(tree, *resolved_.options.run.family);
  }

  // The first demo whose family has a task for what is asked for, else the first one that makes
  // what the name of the output says, else that reads all kinds of inputs, else the first of all.
  // `only`: the family that a flag names; null where none does. Null where there is no such demo.
  const fs::path* find_demo(const FamilyConfig* only) const {
    const std::vector<MediaKind> wished = wished_kinds();
    const fs::path* first = nullptr;
    const fs::path* makes = nullptr;
    const fs::path* reads = nullptr;
    for (const fs::path& demo : sources_.demos) {
      const FamilyConfig* family = family_of_demo(demo);
      if (only != nullptr && family != only) continue;
      if (first == nullptr) first = &demo;
      if (family == nullptr) continue;
      if (has_task(*family)) return &demo;
      const auto is_made = [&](MediaKind kind) { return family->makes(kind); };
      if (makes == nullptr && std::ranges::any_of(wished, is_made)) makes = &demo;
      const auto is_read = [&](const FlagInput& input) { return family->reads(input.kind); };
      if (reads == nullptr && std::ranges::all_of(sources_.inputs, is_read)) reads = &demo;
    }
    if (makes != nullptr) return makes;
    return reads == nullptr ? first : reads;
  }

  // Empty where no output is named, or its name says nothing.
  std::vector<MediaKind> wished_kinds() const {
    const auto output = given("output");
    return output ? kinds_of_name(output->text) : std::vector<MediaKind>{};
  }

  const FamilyConfig* family_of_demo(const fs::path& demo) const {
    const YamlNode tree = load_stage_config(demo, {});
    const YamlEntry* name = tree.find("pipeline");
    const auto named = std::ranges::find_if(sources_.families, [&](const FamilyConfig* each) {
      return name != nullptr && each->name == name->value.text;
    });
    return named == sources_.families.end() ? nullptr : *named;
  }

  // There are no others for a family without a demo; the error is about what chose it.
  void require_dummy_weights(const FamilyConfig& family, const std::string& flag) const {
    if (sources_.demos.empty()) return;  // nor has any other family one
    const auto format = given("load_format");
    if (format && format->text == name_of(LoadFormat::dummy)) return;
    throw InputError("{}: is of {}, which has no demo; expected -c or -m, too, or --load-format {}",
                     flag, family.name, name_of(LoadFormat::dummy));
  }

  std::optional<Given> given(std::string_view name) const {
    const Field& field = all_fields()[field_index(name)];
    std::optional<Given> value = from_flags(field.flags);
    return value ? value : from_environment(field.flags);
  }

  // The task chooses between the demos, so a slip is held against the tasks of all.
  void refuse_task_of_no_demo() const {
    const auto task = given("task");
    if (!task || task->text == kAnyTask || is_video_task(task->text) || sources_.demos.empty())
      return;
    std::vector<std::string_view> known = {kAnyTask};
    for (const fs::path& demo : sources_.demos) {
      const FamilyConfig* family = family_of_demo(demo);
      if (family == nullptr) continue;
      if (family->find_task(task->text) != nullptr) return;
      for (const Task& each : family->tasks) {
        if (std::ranges::find(known, each.name) == known.end()) known.push_back(each.name);
      }
    }
    throw InputError("{}: unknown value {}{}", task->origin, in_quotes(task->text),
                     suggestion(task->text, known));
  }

  // For the task that is named, else for the inputs and the name of the output.
  bool has_task(const FamilyConfig& family) const {
    if (const auto task = given("task"); task && task->text != kAnyTask)
      return family.find_task(task->text) != nullptr;
    InputCounts inputs;
    for (const FlagInput& input : sources_.inputs) {
      inputs.pictures += input.kind == MediaKind::picture ? 1 : 0;
      inputs.clips += input.kind == MediaKind::clip ? 1 : 0;
    }
    const std::vector<MediaKind> kinds = wished_kinds();
    return (kinds.empty() ? family.task_for(inputs) : family.task_for(inputs, kinds)) != nullptr;
  }

  // What is wrong inside a file is named by its place there.
  static void require_stage_config(const std::filesystem::path& file, const std::string& origin) {
    std::error_code error;
    if (std::filesystem::exists(file, error)) return;
    throw InputError("{}: {}: {}", origin, file.string(),
                     error ? error.message() : why_missing(file));
  }

  void apply_file(const std::vector<Assignment>& values, bool from_set) {
    for (const Assignment& value : values) {
      if (value.from_set == from_set && value.task.empty())
        set(value.field, value.text, value.where, value.origin, !from_set);
    }
    for (const Assignment& value : values) {
      if (value.from_set != from_set || value.task.empty()) continue;
      Options checked = resolved_.options;
      assign(fields()[value.field], checked, value.text, value.where);
      resolved_.task_values.push_back({value.task, value.field, value.text, value.where,
                                       value.origin, resolved_.origins[value.field], !from_set});
    }
  }

  bool uses(std::string_view field) const { return resolved_.options.run.family->uses(field); }

  // One strength of source: groups first, then their fields, which must not repeat them. A group
  // sets those of its fields that are of use.
  template <typename Lookup>
  void apply(Lookup lookup, Unused unused) {
    std::map<std::string_view, std::string> by_group;  // field -> origin
    for (const FlagGroup& group : all_flag_groups()) {
      const std::optional<Given> given = lookup(group.flags);
      if (!given) continue;
      const auto expanded = group.expand(given->text, given->origin);
      const bool of_use =
          std::ranges::any_of(expanded, [&](const auto& part) { return uses(part.first); });
      for (const auto& [name, text] : expanded) {
        if (!uses(name) && (of_use || unused == Unused::ignored)) continue;
        const std::size_t field = field_index(name);
        set(field, text, value_place(all_fields()[field], given->origin), given->origin);
        by_group[name] = given->origin;
      }
    }
    for (std::size_t i = 0; i < fields().size(); ++i) {
      const Field& field = fields()[i];
      if (field.flags.empty() || (!uses(field.name) && unused == Unused::ignored)) continue;
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
    const auto found = flags_.find(std::string(flags));
    if (found == flags_.end() || found->second.empty()) return std::nullopt;
    const std::vector<std::string>& texts = found->second;
    const auto called = called_.find(std::string(flags));
    const std::string label = called == called_.end() ? flag_label(flags) : called->second;
    const auto field = std::ranges::find(flag_fields_, flags, &Field::flags);
    if (field != flag_fields_.end() && is_list(*field)) {
      const auto* list = std::get_if<TextListSlot>(&field->slot);
      const bool exact = list != nullptr && list->exact;
      return Given{exact ? list_text(texts) : fmt::format("{}", fmt::join(texts, ";")), label};
    }
    if (texts.size() > 1) {
      throw InputError("{}: given {} times ({} and {}); expected once", label, texts.size(),
                       in_quotes(texts[0]), in_quotes(texts[1]));
    }
    return located({texts[0], label}, flags);
  }

  // A model may be named as on the hub.
  Given located(Given given, std::string_view flags) const {
    const auto field = std::ranges::find(flag_fields_, flags, &Field::flags);
    const auto* path = field == flag_fields_.end() ? nullptr : std::get_if<PathSlot>(&field->slot);
    if (given.text.empty() || path == nullptr || path->kind != PathKind::checkpoint) return given;
    auto kept = folders_.find(given.text);
    if (kept == folders_.end()) {
      const fs::path folder = model_folder(given.text, sources_.environment, given.origin);
      kept = folders_.emplace(given.text, folder.string()).first;
    }
    given.text = kept->second;
    return given;
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
    if (given) return located(*given, flags);
    if (flags != "--attention") return given;
    static const std::string kPythonServers = "DIFFUSION_ATTENTION_BACKEND";
    const std::optional<std::string> text = sources_.environment(kPythonServers);
    if (text && !text->empty()) given = Given{*text, kPythonServers};
    return given;
  }

  const Sources& sources_;
  std::vector<Field> flag_fields_;
  std::map<std::string, std::vector<std::string>> flags_;  // by `flags` of the field or group
  std::map<std::string, std::string> called_;  // likewise: a name of it that was given instead
  mutable std::map<std::string, std::string> folders_;  // of models that were located
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

std::string about_unknown_folder(const std::filesystem::path& folder,
                                 std::span<const FamilyConfig* const> families) {
  std::vector<std::string_view> names;
  std::string found;
  for (const FamilyConfig* family : families) {
    names.push_back(family->name);
    if (found.empty() && family->describe_foreign != nullptr)
      found = family->describe_foreign(folder);
  }
  return fmt::format("{}: holds no checkpoint of {}{}{}", folder.string(), fmt::join(names, ", "),
                     found.empty() ? "" : ": ", found);
}

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

std::optional<std::size_t> field_of_setting(std::string_view name, std::span<const Field> fields) {
  if (kind_of_input(name)) return field_index("inputs", fields);
  const auto found = std::ranges::find(fields, name, &Field::name);
  if (found == fields.end()) return std::nullopt;
  return static_cast<std::size_t>(found - fields.begin());
}

SettingView setting_view(const Setting& setting, const Resolved& resolved) {
  const auto fields = fields_of(resolved.options);
  const auto index = field_of_setting(setting.name, fields);
  if (!index || !setting.given) return {setting.label};
  const std::string& origin = resolved.origins[*index];
  if (origin == kOfDefaults) return {setting.label, true};
  if (const auto kind = kind_of_input(setting.name)) return {resolved.input_places.at(*kind)};
  const Field& field = fields[*index];
  // One flag stands for all of them.
  if (std::holds_alternative<AttentionSlot>(field.slot)) return {origin};
  return {origin == flag_label(field.flags) ? setting.label : value_place(field, origin)};
}

std::string error_text(const InputError& error, const Resolved& resolved) {
  const SettingProblem* problem = error.problem();
  return problem == nullptr ? error.what()
                            : problem_text(*problem, setting_view(problem->setting, resolved));
}

Resolved without_sources(Options options) {
  Resolved resolved;
  resolved.options = std::move(options);
  const std::size_t count = fields_of(resolved.options).size();
  resolved.origins.assign(count, std::string(kOfDefaults));
  resolved.of_stage_config.assign(count, false);
  return resolved;
}

void give(Resolved& resolved, const std::vector<GivenValue>& values) {
  const auto fields = fields_of(resolved.options);
  for (const GivenValue& value : values) {
    assign(fields[value.field], resolved.options, value.text, value.where);
    resolved.note(value.field, value.where);
  }
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
  const auto fields = fields_of(resolved.options);
  for (std::size_t i = 0; i < fields.size(); ++i) {
    const Field& field = fields[i];
    if (!resolved.options.run.family->uses(field.name)) continue;
    const bool of_input = is_of_input(field, resolved.options.run.sampling);
    const bool drawn =
        std::holds_alternative<SeedSlot>(field.slot) && resolved.options.run.sampling.seed_drawn;
    const std::string value = of_input ? "auto"
                              : drawn  ? std::string(kRandomSeed)
                                       : yaml_value(value_json(field, resolved.options));
    const std::string line = fmt::format("{}: {}", field.name, value);
    table += fmt::format(
        "{:<{}}  # {}\n", line, kColumn,
        of_input ? fmt::format("{}'s", sized_by(resolved.options.run)) : resolved.origins[i]);
  }
  return table;
}

}  // namespace diptych
