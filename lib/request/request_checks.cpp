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

}  // namespace

bool writes_plan(const RunConfig& run) {
  return run.think && !run.answers();
}

namespace {

// Looks for values that have no meaning beside the others, kind by kind.
class IdleFinder {
 public:
  explicit IdleFinder(const Resolved& resolved)
      : resolved_(resolved), run_(resolved.options.run), fields_(fields_of(resolved.options)) {}

  std::vector<IdleValue> find() {
    if (run_.answers()) {
      of_answers();
    } else {
      of_pictures();
    }
    of_other_tasks();
    of_texts();
    of_draws();
    return std::move(idle_);
  }

 private:
  void forbid(std::initializer_list<std::string_view> names, const SettingText& why) {
    for (const std::string_view name : names)
      idle_.push_back({Setting::of(name), resolved_.origins[field_index(name)], why});
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
    forbid_all(is_of_painting, why);
  }

  void of_pictures() {
    forbid_all([](const Field& field) { return field.scope == Scope::answer; },
               {"is of answers; a plan has ", plan_length_});
    of_step_caches();
    of_guidance();
    if (!run_.think) forbid({"temperature", "top_k", "top_p"}, {"given without ", think_});
    if (!facts_of(result_format(resolved_.options)).has_quality)
      forbid({"quality"},
             {"has no meaning for PNG, which loses nothing; expected a .jpg or .webp"});
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
      forbid({"negative_prompt", "cfg_interval", "cfg_renorm_type", "cfg_renorm_min", "cfg_mode"},
             why);
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

  void of_texts() {
    const std::size_t think = field_index("think");
    const bool plans_a_task = std::ranges::any_of(
        resolved_.task_values, [&](const auto& value) { return value.field == think; });
    if (!run_.think && (settled_ || !plans_a_task))
      forbid({"max_think_tokens"}, {"given without ", think_});
    if (!writes_plan(run_))
      forbid({"think_output"},
             {"given without a plan to paint by; expected ", think_, " and a task that paints"});
    if (run_.trace.empty())
      forbid({"trace_filter"}, {"given without ", Setting::of("trace", "FILE")});
    if (run_.text.temperature == 0) forbid({"top_k", "top_p"}, {"given without ", temperature_});
    if (run_.answers() && run_.think)
      forbid({"max_tokens"}, {"with ", think_, " it is ", plan_length_});
  }

  void of_draws() {
    // The seed also draws the posterior noise of pictures that are edited, and sampled plans.
    const bool draws = run_.reads_images() || (run_.think && run_.text.temperature > 0);
    if (!run_.noise.empty() && !draws)
      forbid({"seed"}, {"given together with ", Setting::of("noise"), "; expected one of them"});
    if (run_.answers() && run_.text.temperature == 0)
      forbid({"seed"}, {"given without ", temperature_, ", and so nothing is drawn"});
  }

  const Resolved& resolved_;
  const RunConfig& run_;
  std::span<const Field> fields_;
  const bool settled_ = run_.task != "auto";  // nothing runs where it is not
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

// What a file cannot hold is known before anything is painted.
void require_format(const Options& options) {
  const PictureFormatFacts& facts = facts_of(result_format(options));
  if (!facts.built_in) {
    throw InputError(Setting::of("format"), "this build does not write {} (it is without {})",
                     facts.name, facts.library);
  }
  const SamplingConfig& sampling = options.run.sampling;
  if (sampling.size_of_input) return;
  for (const auto& [name, side] :
       {std::pair{"width", sampling.width}, {"height", sampling.height}}) {
    if (side > facts.max_side) {
      throw InputError(Setting::of(name), "found {}, but a {} file has sides of at most {}", side,
                       facts.name, facts.max_side);
    }
  }
}

}  // namespace

void require_complete(const Options& options) {
  const RunConfig& run = options.run;
  if (!run.reads_texts()) {
    throw InputError(Setting::absent("prompt"),
                     "not given; expected a text (\"\" is one), or - for stdin");
  }
  for (const InputItem& item : run.inputs) {
    if (item.is_image()) require_file(Setting::of("image"), item.image);
  }
  if (!run.noise.empty()) require_file(Setting::of("noise"), run.noise);
  if (!run.answers()) require_format(options);
  // Sampled plans differ, and so may those that read input pictures, whose noise is drawn anew.
  const bool plans_differ = run.text.temperature > 0 || run.reads_images();
  if (!options.think_output.empty() && run.sampling.batch_count > 1 && plans_differ) {
    throw InputError(
        Setting::of("think_output"),
        SettingText{
            fmt::format("one file, but each of the {} pictures has a plan of its own; expected ",
                        run.sampling.batch_count),
            Setting::of("batch_count", "1")});
  }
}

void require_model(const RunConfig& run) {
  if (run.model.empty() && run.load_format != LoadFormat::dummy) {
    throw InputError(Setting::absent("model"),
                     "not given; expected the folder of a checkpoint, or --load-format dummy");
  }
}

}  // namespace diptych
