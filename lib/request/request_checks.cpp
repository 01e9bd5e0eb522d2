#include "lib/request/request_checks.h"

#include <algorithm>
#include <filesystem>
#include <initializer_list>
#include <string>

#include <fmt/format.h>

#include "lib/base/error.h"

namespace diptych {

namespace fs = std::filesystem;

namespace {

void require_file(std::string_view flag, const fs::path& file) {
  std::error_code error;
  if (fs::is_directory(file, error))
    throw InputError("{}: {}: is a folder; expected a file", flag, file.string());
  if (fs::exists(file, error)) return;
  throw InputError("{}: {}: {}", flag, file.string(), error ? error.message() : "no such file");
}

}  // namespace

bool writes_plan(const RunConfig& run) {
  return run.think && !run.answers();
}

std::vector<IdleValue> idle_values(const Resolved& resolved) {
  const RunConfig& run = resolved.options.run;
  std::vector<IdleValue> idle;
  const auto forbid = [&](std::initializer_list<std::string_view> names, std::string_view why) {
    for (const std::string_view name : names)
      idle.push_back({resolved.origins[field_index(name)], std::string(why)});
  };
  const auto forbid_all = [&](bool (*is_idle)(const Field&), std::string_view why) {
    const auto fields = fields_of(resolved.options);
    for (std::size_t i = 0; i < fields.size(); ++i) {
      if (is_idle(fields[i])) idle.push_back({resolved.origins[i], std::string(why)});
    }
  };
  if (run.answers()) {
    const std::string why =
        fmt::format("has no meaning for --task {}, which paints nothing", run.task);
    forbid_all(is_of_painting, why);
    forbid({"batch_count"}, why);  // a request has one answer
  } else {
    forbid_all([](const Field& field) { return field.scope == Scope::answer; },
               "is of answers; a plan has --max-think-tokens");
    if (run.cache_mode != "teacache")
      forbid({"cache_threshold", "cache_calibration"}, "given without --cache-mode teacache");
    if (run.cache_mode == "none")
      forbid({"cache_report"}, "given without --cache-mode taylorseer or teacache");
    if (run.sampling.cfg_text_scale <= 1) {
      constexpr std::string_view kWhy = "has no effect without text guidance (--cfg-scale above 1)";
      forbid({"negative_prompt", "cfg_interval", "cfg_renorm_type", "cfg_renorm_min", "cfg_mode"},
             kWhy);
      // The image branch leads away from a velocity that text guidance has made.
      if (run.sampling.cfg_img_scale > 1) forbid({"cfg_img_scale"}, kWhy);
    }
    if (run.sampling.cfg_renorm_min == 1)
      forbid({"cfg_renorm_type"},
             "has no effect with --cfg-renorm-min 1, which switches the renorm off");
    if (!run.think) forbid({"temperature", "top_k", "top_p"}, "given without --think");
  }
  const bool settled = run.task != "auto";  // nothing runs where it is not
  for (const Resolved::TaskValue& value : resolved.task_values) {
    if (settled && run.task != value.task)
      idle.push_back({value.origin, fmt::format("has an effect on --task {} alone", value.task)});
  }
  const std::size_t think = field_index("think");
  const bool plans_a_task = std::ranges::any_of(
      resolved.task_values, [&](const auto& value) { return value.field == think; });
  if (!run.think && (settled || !plans_a_task))
    forbid({"max_think_tokens"}, "given without --think");
  if (!writes_plan(run))
    forbid({"think_output"},
           "given without a plan to paint by; expected --think and a task that paints");
  if (run.trace.empty()) forbid({"trace_filter"}, "given without --trace FILE");
  if (run.text.temperature == 0) forbid({"top_k", "top_p"}, "given without --temperature");
  if (run.answers() && run.think) forbid({"max_tokens"}, "with --think it is --max-think-tokens");
  // The seed also draws the posterior noise of pictures that are edited, and sampled plans.
  const bool draws = run.reads_images() || (run.think && run.text.temperature > 0);
  if (!run.noise.empty() && !draws)
    forbid({"seed"}, "given together with --noise; expected one of them");
  if (run.answers() && run.text.temperature == 0)
    forbid({"seed"}, "given without --temperature, and so nothing is drawn");
  return idle;
}

void require_meaning(const Resolved& resolved, std::string_view given) {
  for (const IdleValue& value : idle_values(resolved)) {
    if (value.origin.starts_with(given)) throw InputError("{}: {}", value.origin, value.why);
  }
}

void require_complete(const Options& options) {
  const RunConfig& run = options.run;
  if (!run.reads_texts()) {
    throw InputError("--prompt: not given; expected a text (\"\" is one), or - for stdin");
  }
  for (const InputItem& item : run.inputs) {
    if (item.is_image()) require_file("--image", item.image);
  }
  if (!run.noise.empty()) require_file("--noise", run.noise);
  // Sampled plans differ, and so may those that read input pictures, whose noise is drawn anew.
  const bool plans_differ = run.text.temperature > 0 || run.reads_images();
  if (!options.think_output.empty() && run.sampling.batch_count > 1 && plans_differ) {
    throw InputError(
        "--think-output: one file, but each of the {} pictures has a plan of its own; expected "
        "--batch-count 1",
        run.sampling.batch_count);
  }
}

void require_model(const RunConfig& run) {
  if (run.model.empty() && run.load_format != "dummy") {
    throw InputError(
        "--model: not given; expected the folder of a checkpoint, or --load-format dummy");
  }
}

}  // namespace diptych
