// What a family of models declares to the configuration: its tasks, its defaults and limits, the
// stages of its stage configs, and the fields that it adds to the common ones. A family fills it in
// its own folder; whoever resolves a configuration is handed the list of them.
#pragma once

#include <cstdint>
#include <filesystem>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lib/base/setting.h"
#include "lib/config/fields.h"
#include "lib/config/stage_config_known.h"

namespace diptych {

struct FieldDefault {
  std::string_view field, text;  // the text as assign() takes it
};

struct OwnDefault {  // likewise, of one checkpoint
  std::string_view field;
  std::string text;
};

// How many inputs of one kind a task reads.
struct ReadCount {
  std::int64_t least = 0, most = 0;
  bool fits(std::int64_t count) const { return least <= count && count <= most; }
};
inline constexpr ReadCount kOne = {1, 1};
inline constexpr ReadCount kOneOrMore = {1, std::numeric_limits<std::int64_t>::max()};

struct TaskReads {  // beside texts
  ReadCount pictures = {}, clips = {};
  bool fits(const InputCounts& inputs) const {
    return pictures.fits(inputs.pictures) && clips.fits(inputs.clips);
  }
};

// A field that has no effect on a task, and why: "is of what is read".
struct TaskIdle {
  std::string_view field, why;
};

struct Task {
  std::string_view name;  // of --task
  std::string_view help;  // "edit pictures"
  TaskReads reads = {};
  MediaKind makes = MediaKind::picture;
  // Over the family's own, where nothing else was said.
  std::span<const FieldDefault> defaults = {};
  // A result has the size of the last picture or clip that is read, unless flags give one.
  bool size_of_input = false;
  // A clip has as many frames as are taken from the one that is read.
  bool frames_of_input = false;
  // The key of a stage config for values of this task alone, over default_sampling_params; "" =
  // there is none. It stands in the stage that makes the result.
  std::string_view sampling_key = {};
  std::string_view results = {};  // what the help calls its results: "edits"
  // Beside what the kinds of its inputs and results say. Flags and items that set one are refused;
  // stage configs may hold it for other tasks.
  std::span<const TaskIdle> idle = {};
};

// A field of the family's own that has no effect beside the other values of a run, and why: "given
// without --cache-mode teacache".
struct OwnIdle {
  std::string_view field;
  SettingText why;
};

// What the models of a family take of a whole number, within the bounds of the common field.
struct FieldLimit {
  std::string_view field;
  std::int64_t low = 0, high = std::numeric_limits<std::int64_t>::max(), multiple = 1;
  std::string_view why = {};   // "makes 0 updates", of a value below `low`
  std::string_view help = {};  // what the help adds
};

// A kind of stage in stage configs; a file has one stage of each kind in their order, or a single
// stage that does all.
struct StageKind {
  std::string_view place;  // of the fields whose keys it holds: YamlPlace::reading
  std::string_view does;   // "reads", in messages
};

// How a family writes texts faster than its model alone.
struct Drafting {
  std::string_view field;  // names the second model, which drafts
  FieldDefault without;    // the value that leaves it out, for comparisons
};

struct FamilyConfig {
  std::string_view name;                // the key `pipeline` of a stage config
  std::string_view released_model;      // the folder's name of a released checkpoint, for examples
  std::string_view released_film = {};  // likewise of one for videos; "" = that one makes them
  // Whether the folder holds a checkpoint of this family, judged by its config files. Throws
  // InputError for one that cannot be read.
  bool (*owns)(const std::filesystem::path& folder);
  std::vector<Task> tasks;  // `auto` is the first that fits the inputs
  std::vector<FieldDefault> defaults;
  // Over the task's, what the models of the folder (RunConfig::model, or the named release) were
  // made for, by their config files. Null: nothing. Throws InputError for one that cannot be read.
  std::vector<OwnDefault> (*of_checkpoint)(const RunConfig& run) = nullptr;
  std::vector<FieldLimit> limits;
  std::vector<StageKind> stages;  // in the order of a request; the last makes the result
  std::vector<Field> fields;      // of with_common_fields()
  // Common fields that its models have no use for. Their flags and keys are refused, their
  // variables ignored.
  std::vector<std::string_view> unused = {};
  // The field of a file that can hold what is asked, so that no prompt is needed; "" = there is
  // none.
  std::string_view prompt_file = {};
  std::optional<Drafting> drafting = {};
  // The field of what a writer of texts is told ahead of the prompt. A family that has one can
  // rewrite the prompts of others (--enhancer); "" = it cannot.
  std::string_view instructions = {};
  // Keys of stage configs, with this family's reasons; they come before refused_keys().
  std::vector<RefusedKey> refused = {};
  // What the demo can do, and what its sizes are good for with random weights.
  std::string_view demo_notice = {}, dummy_demo_notice = {};
  // Its own fields that have no effect on this run. Flags and items that set one are refused. Null:
  // each always has one. Throws as of_checkpoint.
  std::vector<OwnIdle> (*idle)(const Options& options) = nullptr;
  // What a config file of a folder that no family owns says of itself, for the message: "its
  // model_index.json is of a FluxPipeline". "" where nothing is known. Null: nothing ever is.
  // Throws InputError for a file that cannot be read.
  std::string (*describe_foreign)(const std::filesystem::path& folder) = nullptr;

  const Task* find_task(std::string_view name) const;  // null where there is none
  // The first task that reads this; null where there is none.
  const Task* task_for(const InputCounts& inputs) const;
  // The same of those that make one of these kinds.
  const Task* task_for(const InputCounts& inputs, std::span<const MediaKind> makes) const;
  const Task* task_for(const InputCounts& inputs, MediaKind makes) const;
  bool reads(MediaKind kind) const;  // whether one of its tasks does
  bool makes(MediaKind kind) const;  // likewise
  FieldLimit limit_of(std::string_view field) const;
  bool uses(std::string_view field) const;
};

// The text of a default that is of this task alone; "" where there is none.
std::string_view task_default(const Task& task, std::string_view field);

// The fields that are flags, of all families, each once.
std::vector<Field> flag_fields(std::span<const FamilyConfig* const> families);

}  // namespace diptych
