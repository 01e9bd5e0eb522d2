// What a run uses, from all sources: flag, environment, stage config, the defaults of the task and
// of the family, the common defaults, in that order. A `--set` edits the stage config, but counts
// as a flag.
#pragma once

#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lib/base/environment.h"
#include "lib/base/error.h"
#include "lib/config/family_config.h"
#include "lib/config/fields.h"

namespace diptych {

struct FlagInput {  // one --prompt, --image or --video
  MediaKind kind = MediaKind::text;
  std::string text;
};

struct Sources {
  std::vector<FlagInput> inputs;                          // as they stood on the command line
  std::map<std::string, std::vector<std::string>> flags;  // by `flags` of the field or group
  std::vector<std::string> overrides;                     // --set
  Environment environment;
  // The stage configs of demos, of which one is used without -c and -m (demo_choice.h).
  std::vector<std::filesystem::path> demos;
  std::vector<const FamilyConfig*> families;  // at least one
  std::filesystem::path negative_file = {};   // that held the negative prompt
};

// One value of a request over what many have in common.
struct GivenValue {
  std::size_t field;  // index into the family's fields
  std::string text;   // as assign() takes it
  std::string where;  // for messages, and its origin: "list.jsonl:3: steps"
};

// The origin of a value that nothing gave.
inline constexpr std::string_view kOfDefaults = "default";

struct Resolved {
  Options options;
  std::vector<std::string> origins;  // per field of fields_of(options): "--steps", "DIPTYCH_STEPS",
                                     // "demo.yaml:9:5", kOfDefaults
  std::vector<bool> of_stage_config;  // per field: the value is the stage config's
  // What the stage config says of one task alone. It holds while the field's value is still of the
  // origin that it had when sources of this strength had been read.
  struct TaskValue {
    std::string_view task;
    std::size_t field;
    std::string text, where, origin, over;
    bool from_stage_config;
  };
  std::vector<TaskValue> task_values;
  // Where the inputs of each kind came from.
  std::map<MediaKind, std::string> input_places = {
      {MediaKind::text, "--prompt"}, {MediaKind::picture, "--image"}, {MediaKind::clip, "--video"}};
  bool uses_demo = false;
  void note(std::size_t field, std::string origin, bool from_stage_config = false) {
    origins[field] = std::move(origin);
    of_stage_config[field] = from_stage_config;
  }
  bool is_default(std::string_view field) const {
    return origins[field_index(field)] == kOfDefaults;
  }
};

// Inputs keep the order of their flags; where one kind comes from a variable (DIPTYCH_PROMPT;
// DIPTYCH_IMAGE and DIPTYCH_VIDEO, several with ; between), files come first. Settles the task and
// its defaults (task.h). Throws InputError for the first bad value, also for one that a stronger
// source overrules.
//
// The family is the one that the stage config names, else the one that owns the model's folder,
// else the only one that has a flag which was given (its demo is used; of a family without one
// --load-format dummy must be given), else the demo's, else the first. Throws InputError for a
// folder that none owns, or another than the one that is named. A stage config that names no family
// that we know is read as one of the first family's.
Resolved resolve(const Sources& sources);
// The same but for the task, which settle_task() settles: what many requests have in common.
Resolved resolve_sources(const Sources& sources);

// A configuration of which nobody has given a value: all are the defaults.
Resolved without_sources(Options options);
// The values of a request over those that are there. settle_task() comes behind it. Throws
// InputError "<where>: ..." for a bad one.
void give(Resolved& resolved, const std::vector<GivenValue>& values);

// "models/x: holds no checkpoint of bagel, lance", and what a family says that it is instead.
// Throws as FamilyConfig::describe_foreign.
std::string about_unknown_folder(const std::filesystem::path& folder,
                                 std::span<const FamilyConfig* const> families);

// The place of a field's value, for a message about it: where it came from, with the field's name
// where that is not the field's own: "--width", "--size: width", "bagel.yaml:12:5: width".
std::string value_place(const Field& field, std::string_view origin);

// Index into `fields` of a setting's name; "prompt", "image" and "video" are of the inputs. Nothing
// for what is no field.
std::optional<std::size_t> field_of_setting(std::string_view name, std::span<const Field> fields);
// The setting at the place where its value came from; at its label where it is no field, or nobody
// gave a value.
SettingView setting_view(const Setting& setting, const Resolved& resolved);
// The error's message with the place of its setting's value; what() where it is about no setting.
std::string error_text(const InputError& error, const Resolved& resolved);

// One "name: value  # origin" line per field that the family uses.
std::string config_table(const Resolved& resolved);

}  // namespace diptych
