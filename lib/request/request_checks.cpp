#include "lib/request/request_checks.h"

#include <algorithm>
#include <filesystem>
#include <initializer_list>
#include <span>
#include <string>
#include <utility>

#include <fmt/format.h>

#include "lib/base/error.h"
#include "lib/base/folder.h"
#include "lib/config/family_fields.h"
#include "lib/request/enhanced_prompt.h"
#include "lib/request/output_names.h"

namespace diptych {

namespace fs = std::filesystem;

namespace {

void require_file(const Setting& setting, const fs::path& file) {
  std::error_code error;
  if (fs::is_directory(file, error))
    throw InputError(setting, "{}: is a folder; expected a file", file.string());
  if (fs::exists(file, error)) return;
  throw InputError(setting, "{}: {}", file.string(), error ? error.message() : why_missing(file));
}

// Frames of a clip may lie in a folder.
void require_input(const InputItem& item) {
  std::error_code ignored;
  if (item.is_video() && fs::is_directory(item.video, ignored)) return;
  require_file(Setting::of(input_name(item.kind())), item.file());
}

bool reads_files(const RunConfig& run) {
  return run.reads_images() || run.reads_videos();
}

}  // namespace

bool writes_plan(const RunConfig& run) {
  return run.think && !run.answers();
}

namespace {

constexpr std::string_view kFormat = "format";

// Looks for values that have no meaning beside the others, kind by kind.
class IdleFinder {
 public:
  explicit IdleFinder(const Resolved& resolved)
      : resolved_(resolved), run_(resolved.options.run), fields_(fields_of(resolved.options)) {}

  std::vector<IdleValue> find() {
    if (run_.answers()) {
      of_answers();
    } else {
      of_paintings();
    }
    if (settled_) of_media();
    if (task_ != nullptr) of_task();
    of_other_tasks();
    of_family();
    of_texts();
    of_draws();
    return std::move(idle_);
  }

 private:
  void forbid(std::initializer_list<std::string_view> names, const SettingText& why) {
    for (const std::string_view name : names)
      idle_.push_back({Setting::of(name), resolved_.origins[field_index(name, fields_)], why});
  }
  void forbid_all(bool (*is_idle)(const Field&), const SettingText& why) {
    for (std::size_t i = 0; i < fields_.size(); ++i) {
      if (is_idle(fields_[i]))
        idle_.push_back({Setting::of(fields_[i].name), resolved_.origins[i], why});
    }
  }

  void of_answers() {
    const SettingText why = {"has no meaning for ", Setting::of("task", run_.task),
                             ", which paints nothing"};
    forbid({"batch_count"}, why);  // a request has one answer
    forbid({"vae_dtype"}, why);    // of the session, and so no field of a painting
    forbid_all([](const Field& field) { return is_of_painting(field) && field.name != kFormat; },
               why);
    if (resolved_.options.format != ResultFormat::json) forbid({kFormat}, why);
  }

  void of_paintings() {
    SettingText no_answer = {"is of answers"}, no_text = {"given without ", think_};
    if (plans_) {
      no_answer.insert(no_answer.end(), {"; a plan has ", plan_length_});
    } else if (settled_) {
      no_answer = no_text = {"has no meaning for ", Setting::of("task", run_.task),
                             ", which writes no text"};
    } else {
      no_text = no_answer;
    }
    forbid_all([](const Field& field) { return field.scope == Scope::answer; }, no_answer);
    of_step_caches();
    of_guidance();
    if (!resolved_.options.enhance.on)
      forbid({"enhancer", "enhancer_drafter", "enhance_instructions", "enhance_max_tokens"},
             {"given without ", Setting::of("enhance_prompt")});
    if (!run_.think) forbid({"temperature", "top_k", "top_p"}, no_text);
    of_encoding();
  }

  void of_task() {
    for (const auto& [field, why] : task_->idle) forbid({field}, {std::string(why)});
  }

  void of_encoding() {
    const EncodingFacts facts = encoding_facts(resolved_.options);
    const bool clip = run_.makes == MediaKind::clip;
    if (!facts.has_quality) {
      forbid({"quality"}, {clip ? fmt::format("has no meaning for {}; expected a .webp", facts.name)
                                : "has no meaning for PNG, which loses nothing; expected a .jpg "
                                  "or .webp"});
    }
    if (clip && !facts.crf)
      forbid({"crf"}, {fmt::format("has no meaning for {}; expected a .mp4 or .webm", facts.name)});
    const auto& format = resolved_.options.format;
    const auto kinds = format ? kinds_of(*format) : std::vector{run_.makes};
    if (settled_ && std::ranges::find(kinds, run_.makes) == kinds.end()) {
      forbid({kFormat},
             {fmt::format("{} is of {}, but ", name_of(*format), kind_name(kinds.front())),
              Setting::of("task", run_.task), fmt::format(" makes {}", kind_name(run_.makes))});
    }
  }

  // What is of clips alone, or of those that are made from no other.
  void of_media() {
    if (run_.makes != MediaKind::clip)
      forbid({"video_frames", "fps", "crf", "contact_sheet"},
             {"has no meaning for ", Setting::of("task", run_.task), ", which makes no video"});
    if (run_.sampling.frames_of_input)
      forbid({"video_frames"}, {"has no meaning for ", Setting::of("task", run_.task),
                                ", whose result has the frames of its input"});
  }

  void of_step_caches() {
    if (run_.cache_mode != StepCacheMode::teacache)
      forbid({"cache_threshold", "cache_calibration"},
             {"given without ", Setting::of("cache_mode", "teacache")});
    if (run_.cache_mode == StepCacheMode::none)
      forbid({"cache_report"},
             {"given without ", Setting::of("cache_mode", "taylorseer"), " or teacache"});
  }

  void of_guidance() {
    if (run_.sampling.cfg_text_scale <= 1) {
      const SettingText why = {"has no effect without text guidance (",
                               Setting::of("cfg_text_scale").called("--cfg-scale"), " above 1)"};
      forbid({"negative_prompt"}, why);
      forbid_all([](const Field& field) { return field.scope == Scope::guidance; }, why);
      // The image branch leads away from a velocity that text guidance has made.
      if (run_.sampling.cfg_img_scale > 1) forbid({"cfg_img_scale"}, why);
    }
    if (run_.sampling.cfg_renorm_min == 1)
      forbid({"cfg_renorm_type"}, {"has no effect with ", Setting::of("cfg_renorm_min", "1"),
                                   ", which switches the renorm off"});
  }

  void of_other_tasks() {
    for (const Resolved::TaskValue& value : resolved_.task_values) {
      if (settled_ && run_.task != value.task)
        idle_.push_back({Setting::of(fields_[value.field].name),
                         value.origin,
                         {"has an effect on ", Setting::of("task", value.task), " alone"}});
    }
  }

  void of_family() {
    if (run_.family == nullptr || run_.family->idle == nullptr) return;
    for (const OwnIdle& value : run_.family->idle(resolved_.options))
      forbid({value.field}, value.why);
  }

  void of_texts() {
    const std::size_t think = field_index("think");
    const bool plans_a_task = std::ranges::any_of(
        resolved_.task_values, [&](const auto& value) { return value.field == think; });
    if (!run_.think && (settled_ || !plans_a_task))
      forbid({"max_think_tokens"}, {"given without ", think_});
    if (!writes_plan(run_))
      forbid({"think_output"},
             {"given without a plan to paint by; expected ", think_, " and a task that paints"});
    if (!run_.read_device) forbid({"connector"}, {"given without ", Setting::of("read_device")});
    if (run_.trace.empty())
      forbid({"trace_filter"}, {"given without ", Setting::of("trace", "FILE")});
    if (run_.text.temperature == 0) forbid({"top_k", "top_p"}, {"given without ", temperature_});
    if (run_.answers() && run_.think)
      forbid({"max_tokens"}, {"with ", think_, " it is ", plan_length_});
  }

  void of_draws() {
    // The seed also draws the posterior noise of what is edited, and sampled plans.
    const bool draws = reads_files(run_) || (run_.think && run_.text.temperature > 0);
    if (!run_.noise.empty() && !draws)
      forbid({"seed"}, {"given together with ", Setting::of("noise"), "; expected one of them"});
    if (run_.answers() && run_.text.temperature == 0)
      forbid({"seed"}, {"given without ", temperature_, ", and so nothing is drawn"});
  }

  const Resolved& resolved_;
  const RunConfig& run_;
  std::span<const Field> fields_;
  const bool settled_ = run_.task != kAnyTask;  // nothing runs where it is not
  const Task* task_ = run_.family == nullptr ? nullptr : run_.family->find_task(run_.task);
  // Not every family can write a plan; messages name only what it has.
  const bool plans_ = run_.family == nullptr || run_.family->uses("think");
  const Setting think_ = Setting::of("think"), temperature_ = Setting::of("temperature"),
                plan_length_ = Setting::of("max_think_tokens");
  std::vector<IdleValue> idle_;
};

}  // namespace

std::vector<IdleValue> idle_values(const Resolved& resolved) {
  return IdleFinder(resolved).find();
}

void require_meaning(const Resolved& resolved, std::string_view given) {
  for (const IdleValue& value : idle_values(resolved)) {
    if (value.origin.starts_with(given))
      throw InputError(problem_text({value.setting, {}, value.why}, {value.origin}));
  }
}

namespace {

// "an MP4 file"
std::string file_named(std::string_view format) {
  return fmt::format("{} {} file", format.starts_with('M') ? "an" : "a", format);
}

// What a file cannot hold is known before anything is painted; of the size of an input, the session
// finds it out.
void require_format(const Options& options) {
  const EncodingFacts facts = encoding_facts(options);
  if (!facts.built_in) {
    throw InputError(Setting::of("format"), "this build does not write {} (it is without {})",
                     facts.name, facts.library);
  }
  if (facts.crf && options.crf && (*options.crf < facts.crf->min || *options.crf > facts.crf->max))
    throw InputError(Setting::of("crf"), "found {}, but {} takes {} to {}", *options.crf,
                     facts.name, facts.crf->min, facts.crf->max);
  const SamplingConfig& sampling = options.run.sampling;
  const bool clip = options.run.makes == MediaKind::clip;
  if (clip && sampling.fps && sampling.fps->value() > facts.max_rate)
    throw InputError(Setting::of("fps"), "found {}, but {} has at most {} frames a second",
                     frame_rate_text(*sampling.fps), file_named(facts.name), facts.max_rate);
  if (sampling.size_of_input) return;
  for (const auto& [name, side] :
       {std::pair{"width", sampling.width}, {"height", sampling.height}}) {
    if (side > facts.max_side) {
      throw InputError(Setting::of(name), "found {}, but {} has sides of at most {}", side,
                       file_named(facts.name), facts.max_side);
    }
    if (facts.even_sides && side % 2 != 0)
      throw InputError(Setting::of(name), "found {}, but {} has even sides", side,
                       file_named(facts.name));
  }
}

// A file that belongs to one result of several.
void require_one_result(const Options& options, const char* setting, std::string_view of_each) {
  const std::int64_t count = options.run.sampling.batch_count;
  if (count == 1) return;
  throw InputError(Setting::of(setting),
                   SettingText{fmt::format("one file, but each of the {} {} has a {} of its own; "
                                           "expected ",
                                           count, kind_name(options.run.makes), of_each),
                               Setting::of("batch_count", "1")});
}

}  // namespace

void require_complete(const Options& options) {
  const RunConfig& run = options.run;
  if (!run.reads_texts()) {
    throw InputError(Setting::absent("prompt"),
                     "not given; expected a text (\"\" is one), or - for stdin");
  }
  for (const InputItem& item : run.inputs) {
    if (!item.is_text()) require_input(item);
  }
  if (!run.noise.empty()) require_file(Setting::of("noise"), run.noise);
  if (run.read_device && !run.trace.empty())
    throw InputError(
        Setting::of("trace"),
        SettingText{"needs a model that reads and paints, and ",
                    Setting::of("read_device", device_name(*run.read_device)), " makes two"});
  if (enhances(options)) {
    require_enhanceable(options);
    const fs::path& instructions = options.enhance.instructions;
    if (!instructions.empty()) require_file(Setting::of("enhance_instructions"), instructions);
  }
  if (!run.answers()) require_format(options);
  // Sampled plans differ, and so may those that read input pictures, whose noise is drawn anew.
  const bool plans_differ = run.text.temperature > 0 || reads_files(run);
  if (!options.think_output.empty() && plans_differ)
    require_one_result(options, "think_output", "plan");
  if (!options.contact_sheet.empty()) require_one_result(options, "contact_sheet", "sheet");
}

bool has_model(const RunConfig& run) {
  return !run.model.empty() || run.load_format == LoadFormat::dummy;
}

void require_model(const RunConfig& run) {
  if (!has_model(run)) {
    throw InputError(Setting::absent("model"),
                     "not given; expected the folder of a checkpoint, or --load-format dummy");
  }
}

void require_runnable(const Options& options) {
  require_complete(options);
  require_model(options.run);
}

}  // namespace diptych
