#include "lib/pipelines/cosmos/replay.h"

#include <memory>
#include <optional>

#include <fmt/format.h>

#include "lib/base/error.h"
#include "lib/pipelines/cosmos/checkpoint.h"
#include "lib/pipelines/cosmos/job.h"
#include "lib/pipelines/dit/replay_parts.h"
#include "lib/pipelines/dit/session.h"
#include "lib/pipelines/inputs.h"
#include "lib/pipelines/recorded_values.h"
#include "lib/tensor/safetensors.h"

namespace diptych {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kPicture = "cosmos2_text2image", kClip = "cosmos2_video2world";

std::string parameter(const char* name) {
  return fmt::format("/parameters/{}", name);
}

// What a clip begins with: input_image.png, or input_frame00.png and those behind it.
std::vector<fs::path> frame_files(const RecordedCase& recorded) {
  const fs::path picture = recorded.folder / "input_image.png";
  if (fs::exists(picture)) return {picture};
  std::vector<fs::path> files;
  const auto next = [&] {
    return recorded.folder / fmt::format("input_frame{:02}.png", files.size());
  };
  while (fs::exists(next())) files.push_back(next());
  return files;
}

void add_values(const RecordedCase& recorded, std::string_view task, RecordedValues& values) {
  values.add_text("task", "/task", std::string(task));
  values.add<std::uint64_t>("seed", "/seed");
  values.add<std::int64_t>("width", parameter("width"));
  values.add<std::int64_t>("height", parameter("height"));
  values.add<std::int64_t>("steps", parameter("num_inference_steps"));
  values.add<double>("cfg_text_scale", parameter("guidance_scale"));
  values.add_text("negative_prompt", "/negative_prompt",
                  recorded_field<std::string>(recorded, "/negative_prompt"));
  if (task == "t2i") return;
  values.add<std::int64_t>("video_frames", parameter("num_frames"));
  values.add<std::int64_t>("fps", parameter("fps"));
}

CosmosRecording recording_of(const RecordedCase& recorded, const std::vector<fs::path>& frames) {
  CosmosRecording recording;
  for (const fs::path& file : frames) recording.frames.push_back(read_input(file));
  const SafetensorsFile inputs = SafetensorsFile::open(recorded.folder / "inputs.safetensors");
  const auto noise = [&](const char* name) { return inputs.view(name)[0].to(at::kFloat).clone(); };
  recording.noise = noise("initial_noise");
  if (!frames.empty()) recording.posterior_noise = noise("posterior_noise");
  return recording;
}

// Turns a case into a request, which goes a user's way through the session.
void replay_run(DitSession& session, const RunConfig& config, const RecordedCase& recorded,
                Log& log, TraceSink& trace) {
  std::vector<fs::path> frames;
  std::vector<InputItem> inputs = {{recorded_field<std::string>(recorded, "/prompt"), {}}};
  std::string_view task = "t2i";
  if (recorded.task() == kClip) {
    frames = frame_files(recorded);
    if (frames.empty())
      throw InputError("{}: found neither input_image.png nor input_frame00.png",
                       recorded.folder.string());
    const bool clip = frames.size() > 1;
    task = clip ? "v2v" : "i2v";
    inputs.push_back(
        InputItem::of_file(clip ? MediaKind::clip : MediaKind::picture, frames.front()));
  }
  const auto add = [&](RecordedValues& values) { add_values(recorded, task, values); };
  const RunConfig request = recorded_request(config, recorded, add, std::move(inputs));
  auto& checkpoint = dynamic_cast<CosmosCheckpoint&>(session.checkpoint());
  CosmosJob job(request, checkpoint, log, recording_of(recorded, frames));
  Progress progress(log, ProgressStyle::none);
  Results results;
  results.result = [](const Result&, const Report&) {};
  DitJob* const alone = &job;
  session.run_traced(std::span(&alone, 1), &trace, progress, results);
}

}  // namespace

CaseReplay replay_cosmos(const fs::path& folder, const RunConfig& config, Log& log) {
  RunConfig own = config;
  own.model = folder;
  const auto session = std::make_shared<std::unique_ptr<DitSession>>();
  return [=, &log](const RecordedCase& recorded, TraceSink& trace) {
    const std::string task = recorded.task();
    if (replay_dit_part(task, recorded, own, trace)) return;
    if (task != kPicture && task != kClip)
      throw Unsupported("{}: task '{}' is not in this version",
                        (recorded.folder / "case.json").string(), task);
    if (*session == nullptr) *session = std::make_unique<DitSession>(own, cosmos_opening(), log);
    replay_run(**session, own, recorded, log, trace);
  };
}

}  // namespace diptych
