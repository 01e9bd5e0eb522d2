#include "lib/pipelines/wan/replay.h"

#include <memory>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "lib/base/error.h"
#include "lib/pipelines/dit/replay_parts.h"
#include "lib/pipelines/dit/session.h"
#include "lib/pipelines/recorded_values.h"
#include "lib/pipelines/wan/checkpoint.h"
#include "lib/pipelines/wan/job.h"
#include "lib/pipelines/wan/replay_padding.h"
#include "lib/pipelines/wan/replay_teacache.h"
#include "lib/pipelines/wan/replay_weights.h"
#include "lib/tensor/safetensors.h"

namespace diptych {
namespace {

using Json = nlohmann::json;
namespace fs = std::filesystem;

std::string parameter(const char* name) {
  return fmt::format("/parameters/{}", name);
}

bool has_number(const RecordedCase& recorded, const std::string& pointer) {
  return has_field(recorded, pointer) &&
         recorded.description.at(Json::json_pointer(pointer)).is_number();
}

void add_teacache(const RecordedCase& recorded, RecordedValues& values) {
  const std::string at = parameter("teacache");
  if (!has_field(recorded, at)) return;
  values.add_text("cache_mode", at, "teacache");
  values.add<double>("cache_threshold", at + "/thresh");
  const auto coefficients = recorded_field<std::vector<double>>(recorded, at + "/coefficients");
  values.add_text("teacache_coefficients", at, fmt::format("{}", fmt::join(coefficients, ",")));
  values.add<bool>("teacache_ret_steps", at + "/use_ret_steps");
  // The case counts forwards of both branches.
  values.add_text("teacache_first_steps", at + "/ret_steps",
                  fmt::format("{}", recorded_field<std::int64_t>(recorded, at + "/ret_steps") / 2));
}

void add_values(const RecordedCase& recorded, std::string_view task, RecordedValues& values) {
  values.add_text("task", "/task", std::string(task));
  values.add<std::uint64_t>("seed", "/seed");
  values.add<std::int64_t>("width", parameter("width"));
  values.add<std::int64_t>("height", parameter("height"));
  values.add<std::int64_t>("video_frames", parameter("num_frames"));
  values.add<std::int64_t>("steps", parameter("num_inference_steps"));
  values.add<double>("timestep_shift", parameter("flow_shift"));
  values.add<double>("cfg_text_scale", parameter("guidance_scale"));
  const auto add_number = [&](std::string_view name, const std::string& pointer) {
    if (has_number(recorded, pointer)) values.add<double>(name, pointer);
  };
  add_number("guidance_scale_2", parameter("guidance_scale_2"));
  add_number("guidance_rescale", parameter("guidance_rescale"));
  add_number("boundary_ratio", parameter("boundary_ratio"));
  add_number("cfg_gate", parameter("FASTVIDEO_CFG_GATE_STEP"));
  add_teacache(recorded, values);
  const auto scheduler = recorded_field<std::string>(recorded, parameter("scheduler"));
  values.add_text("sampler", parameter("scheduler"),
                  scheduler.starts_with("FlowMatchEuler") ? "euler" : "unipc");
  // None of the prompts has anything to clean.
  values.add_text("prompt_cleaning", "/prompt", "diffusers");
  values.add_text("negative_prompt", "/negative_prompt",
                  recorded.description.at("negative_prompt").is_string()
                      ? recorded_field<std::string>(recorded, "/negative_prompt")
                      : "");
}

std::vector<InputItem> inputs_of(const RecordedCase& recorded) {
  std::vector<InputItem> inputs = {{recorded_field<std::string>(recorded, "/prompt"), {}}};
  const fs::path picture = recorded.folder / "input_image.png";
  if (fs::exists(picture)) inputs.push_back(InputItem::of_file(MediaKind::picture, picture));
  return inputs;
}

std::string_view task_of(const RecordedCase& recorded) {
  const std::string task = recorded.task();
  if (task == "t2v" || task == "ti2v (text only)") return "t2v";
  if (task == "i2v" || task == "ti2v (image)") return "i2v";
  return {};
}

// Turns a case into a request, which goes a user's way through the session.
void replay_clip(DitSession& session, const RunConfig& config, const RecordedCase& recorded,
                 Log& log, TraceSink& trace) {
  const auto add = [&](RecordedValues& values) { add_values(recorded, task_of(recorded), values); };
  RunConfig request = recorded_request(config, recorded, add, inputs_of(recorded));
  request.sampling.size_of_input = false;
  auto& checkpoint = dynamic_cast<WanCheckpoint&>(session.checkpoint());
  WanJob job(request, checkpoint, log);
  job.is_recorded = true;
  // Where they are summed as the reference does. One key with their weight is nearer to float64,
  // and so further from the recording: by 6e-6 behind the first cross attention, which guidance
  // multiplies (with it t2v_unipc_batched and t2v_unipc_sequential exceed their tolerance, by 1.5
  // at most). Summed in another order they are further away.
  const Runtime& runtime = checkpoint.runtime();
  if (runtime.device.is_cpu() ||
      runtime.paint_attention.of(AttentionRole::self).name() == kMathInOrder)
    job.shared_keys = SharedKeys::repeated;
  const SafetensorsFile inputs = SafetensorsFile::open(recorded.folder / "inputs.safetensors");
  job.recorded_noise = inputs.view("initial_latents")[0].to(at::kFloat).clone();
  Progress progress(log, ProgressStyle::none);
  Results results;
  results.result = [](const Result&, const Report&) {};
  DitJob* const alone = &job;
  session.run_traced(std::span(&alone, 1), &trace, progress, results);
}

// A GPU's products sum the keys of a text in another order than those of the recording.
void attend_in_order(RunConfig& config, Log& log) {
  std::string& attention = config.paint_attention.default_backend;
  if (resolve_device(config.device, log).is_cpu() || config.dtype != DtypeChoice::float32 ||
      attention != "auto")
    return;
  attention = kMathInOrder;
  log.info_once("the transformer's attention sums keys in the order of the recording");
}

}  // namespace

CaseReplay replay_wan(const fs::path& folder, const RunConfig& config, Log& log) {
  RunConfig own = config;
  own.model = folder;
  attend_in_order(own, log);
  const auto session = std::make_shared<std::unique_ptr<DitSession>>();
  return [=, &log](const RecordedCase& recorded, TraceSink& trace) {
    const std::string task = recorded.task();
    if (replay_dit_part(task, recorded, own, trace) ||
        replay_wan_padding(task, recorded, own, trace) ||
        replay_wan_teacache(task, recorded, trace))
      return;
    if (task_of(recorded).empty())
      throw Unsupported("{}: task '{}' is not in this version",
                        (recorded.folder / "case.json").string(), task);
    const auto run = [&](DitSession& opened, const RunConfig& of, TraceSink& sink) {
      replay_clip(opened, of, recorded, log, sink);
    };
    if (has_own_weights(recorded)) return replay_wan_weights(own, recorded, log, trace, run);
    if (*session == nullptr) *session = std::make_unique<DitSession>(own, wan_opening(), log);
    run(**session, own, trace);
  };
}

}  // namespace diptych
