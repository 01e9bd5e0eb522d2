// The one list of what a user can set: it drives the command line, the environment, the stage
// config, --print-config, the checks of ranges and the record inside a picture.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include <nlohmann/json.hpp>

#include "lib/base/error.h"
#include "lib/base/frame_rate.h"
#include "lib/config/added_weights.h"
#include "lib/config/enhance_config.h"
#include "lib/config/result_formats.h"
#include "lib/config/run_config.h"

namespace diptych {

// Everything the verb `generate` resolves.
struct Options {
  RunConfig run;
  std::filesystem::path config;                 // the stage config, "" = none
  std::filesystem::path output = "output.png";  // file, pattern with %03d, folder, or - for stdout
  std::optional<ResultFormat> format;           // nullopt: as the names of results say
  std::int64_t quality = 95;                    // in formats that have one
  std::optional<std::int64_t> crf;              // likewise; nullopt: the format's usual one
  ProgressStyle progress = ProgressStyle::automatic;
  std::filesystem::path think_output;           // the plan as a text file, "" = none
  std::filesystem::path contact_sheet;          // frames of a clip as a picture, "" = none
  EnhanceConfig enhance;                        // of the prompt, before a session sees the request
  std::optional<EnhancedPrompt> enhanced = {};  // once that is done; no field sets it
};

// The inputs as the text that the field "inputs" takes.
std::string inputs_text(const std::vector<InputItem>& inputs);

// Where a value lives in Options, and which values it takes.
struct WholeSlot {
  std::int64_t& (*at)(Options&);
  std::int64_t low, high;  // a family may take fewer (FieldLimit)
  bool is_side = false;    // of the picture: once given, it has that size, not the input's
};
struct SeedSlot {  // a number, or random (-1), which draws one
  std::uint64_t& (*at)(Options&);
  bool& (*drawn)(Options&);
};
struct RealSlot {
  double& (*at)(Options&);
  double low;
  bool low_included;
  double high = 1e6;  // far beyond any use; keeps products of values finite
};
inline constexpr std::string_view kUnset = "auto";       // of a number that may be left open
inline constexpr std::string_view kSameDevice = "same";  // of a device that may be another one's
// A part of a range, and what has it.
struct NamedRange {
  std::int64_t low, high;
  std::string_view of;  // "MP4"
};
struct FreeWholeSlot {  // a number from `low` to `high`, or auto
  std::optional<std::int64_t>& (*at)(Options&);
  std::int64_t low, high;
  // What is left of it beside the other values, for messages; nothing where that is open.
  std::optional<NamedRange> (*range)(const Options&);
};
struct FrameRateSlot {  // a number or a fraction, such as 30000/1001, or auto
  std::optional<FrameRate>& (*at)(Options&);
};
struct IntervalSlot {  // 0 <= low < high <= 1
  double& (*low)(Options&), &(*high)(Options&);
};
// What other programs call a choice. `name` is ours; "" where there is none: "fp16" + `why`.
struct OtherName {
  std::string_view text, name, why = {};
};
struct ChoiceSlot {  // an enum of lib/base/choices.h, by the place of its name
  std::size_t (*get)(Options&);
  void (*set)(Options&, std::size_t);
  std::span<const std::string_view> names;
  std::span<const OtherName> other_names = {};
};
struct TaskSlot {  // auto, or a task of the family
  std::string& (*at)(Options&);
};
struct AttentionSlot {  // a backend's name, or as the Python servers spell it (FLASH_ATTN, ...)
  std::string& (*at)(Options&);
  bool may_be_empty;
};
struct DeviceSlot {
  DeviceChoice& (*at)(Options&);
};
struct FreeDeviceSlot {  // a device, or same: that of the run
  std::optional<DeviceChoice>& (*at)(Options&);
};
struct TextSlot {
  std::string& (*at)(Options&);
};
enum class PathKind {
  other,
  checkpoint,  // a folder, which may also be named as on the hub
  tuning,      // tables of kernels, which a record knows by their hash
  weights,     // of a part of the model, instead of the checkpoint's
};
struct PathSlot {
  std::filesystem::path& (*at)(Options&);
  PathKind kind = PathKind::other;
};
struct TextListSlot {
  std::vector<std::string>& (*at)(Options&);
  // Each flag is one text as it stands, whatever it holds. Otherwise ; separates texts; elsewhere
  // (variables, stage configs, lists) it does so in both.
  bool exact = false;
};
// Files of weights that are added to the model's; as text with semicolons between them.
struct AddedWeightsSlot {
  std::vector<AddedWeights>& (*at)(Options&);
  std::span<const std::string_view> parts;  // of the model, which a file may be for
};
struct BoolSlot {  // a flag without a value; true, false, on, off, 1, 0 elsewhere
  bool& (*at)(Options&);
};
// What the model reads, in order; as text a JSON array: [{"image": "a.png"}, {"text": "..."}].
struct InputsSlot {
  std::vector<InputItem>& (*at)(Options&);
};
using Slot = std::variant<WholeSlot, SeedSlot, RealSlot, FreeWholeSlot, FrameRateSlot, IntervalSlot,
                          ChoiceSlot, TaskSlot, AttentionSlot, DeviceSlot, FreeDeviceSlot, TextSlot,
                          PathSlot, TextListSlot, AddedWeightsSlot, BoolSlot, InputsSlot>;

// Which map of a stage config holds the key of a field: the file itself, or the stage of a kind
// that families name (StageKind). These are the kinds of the common fields; a family may have
// others.
struct YamlPlace {
  static constexpr std::string_view none = "", top = "file", reading = "reading",
                                    painting = "painting";
  // Of the stage that may stand in front of any family's.
  static constexpr std::string_view enhancing = "enhancing";
};

// What a field is about. It decides which verbs take it, which items of a batch may have it, where
// it has a meaning, and which requests may share forwards.
enum class Scope {
  command,     // one value for the whole command: stage config, family, memory to take
  display,     // how the progress of a run is shown
  session,     // what a model is opened with
  parallel,    // among how many models, or processes, a request is divided
  request,     // what is asked for: the task, what it reads, how many results
  enhancing,   // of the model that rewrites the prompt of what is painted
  generation,  // how texts and pictures alike are made
  answer,      // of answers alone
  picture,     // of painted pictures, where each in a shared forward has a value of its own
  start,       // of one painted picture, which it begins with
  painting,    // of painted pictures, where all in a shared forward have the same value
  guidance,    // the same of text guidance: no effect where there is none
  step_cache,  // the same of steps that are predicted
  report,      // a comparison that is made beside the result, in a run of its own
  encoding,    // how a painted picture becomes the bytes of a file
  output,      // the files that one request writes
};

struct Field {
  std::string_view name;  // in --print-config and in a picture's record
  Scope scope;
  std::string_view flags;  // as CLI11 takes them, "-s,--seed"; "" = no flag and no variable
  std::string_view value;  // what the help calls the value, "N"
  std::string_view help;
  Slot slot;
  std::string_view place = YamlPlace::none;
  std::string_view yaml = {};  // "default_sampling_params.seed"
  // The same flag as other programs call it, "--num-inference-steps,--num-steps". Flags alone:
  // variables, keys and messages have the first name.
  std::string_view aliases = {};
};

// A flag that stands for several fields, such as --size for width and height.
struct FlagGroup {
  std::string_view flags;
  Scope scope;  // of each of its fields
  std::string_view value, help;
  // The fields and their texts. Throws InputError "<where>: ...".
  std::vector<std::pair<std::string_view, std::string>> (*expand)(const std::string& text,
                                                                  const Subject& where);
  std::string_view aliases = {};  // as a field's
};

std::span<const Field> all_fields();  // those of every family
std::span<const FlagGroup> all_flag_groups();
// Of a name in the list.
std::size_t field_index(std::string_view name, std::span<const Field> fields = all_fields());

// Whether requests to one loaded model may differ in it.
bool is_of_request(Scope scope);
// The same where it is a flag and the key of a batch's item, too.
bool is_of_request(const Field& field);
// Whether it is the width or the height of a picture.
bool is_side(const Field& field);
// Whether it has a meaning only where something is painted.
bool is_of_painting(const Field& field);
// Whether the inputs of the run set its value: the sides of an edit.
bool is_of_input(const Field& field, const SamplingConfig& sampling);
// Whether it has to be the same in requests that share the forwards of painting.
bool is_shared_by_forwards(const Field& field);
// Whether two requests are the same in all of these.
bool may_share_forwards(const RunConfig& a, const RunConfig& b);
// Whether one loaded model serves both.
bool same_model(const Options& a, const Options& b);

// Whether its flag may be repeated, and its text has semicolons between the values.
bool is_list(const Field& field);
// "-s,--seed" -> "seed"; "--cfg-scale,--cfg-text-scale" -> "cfg-scale", "cfg-text-scale".
std::vector<std::string_view> long_names(std::string_view flags);
// "--cfg-scale/--cfg-text-scale", for messages.
std::string flag_label(std::string_view flags);
// "cfg_scale" of "cfg-scale", as lists have it.
std::string with_underscores(std::string_view long_name);
// "DIPTYCH_CFG_SCALE" of "cfg-scale".
std::string environment_name(std::string_view long_name);

// Reads one value from its text and checks it. Throws InputError "<where>: ...", also where the
// options' family has no use for the field.
void assign(const Field& field, Options& options, const std::string& text, const Subject& where);
// The value as text that assign() takes.
std::string value_text(const Field& field, const Options& options);
nlohmann::ordered_json value_json(const Field& field, const Options& options);
// 12, or "30000/1001" where it is no whole number.
nlohmann::ordered_json rate_json(FrameRate rate);

inline constexpr std::string_view kRandomSeed = "random";  // as a value of the field; so is -1
// A seed for `--seed random`: 32 bits, which any program can read back from a record.
std::uint64_t draw_seed();

// The text as a number from `low` to `high`. Throws InputError "<where>: ...".
std::int64_t whole_number(std::string_view text, const Subject& where, std::int64_t low,
                          std::int64_t high);

// As diptych names it: FLASH_ATTN -> flash. Throws InputError that lists the names.
std::string attention_name(std::string_view text, const Subject& where);

// The parts of "a;b;c" that are not empty: lists in variables and stage configs.
std::vector<std::string_view> split_list(std::string_view text);

// Texts as one that assign() takes for a list, whatever they hold: ["a;b","c"].
std::string list_text(const std::vector<std::string>& texts);

}  // namespace diptych
