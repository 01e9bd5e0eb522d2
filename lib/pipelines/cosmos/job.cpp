#include "lib/pipelines/cosmos/job.h"

#include <algorithm>
#include <array>
#include <deque>
#include <utility>

#include <fmt/format.h>

#include "lib/base/error.h"
#include "lib/base/interrupt.h"
#include "lib/base/sha256.h"
#include "lib/media/resize.h"
#include "lib/media/video/clip_read.h"
#include "lib/pipelines/dit/branches.h"
#include "lib/pipelines/inputs.h"
#include "lib/session/hashes.h"

namespace diptych {
namespace {

constexpr FrameRate kFrameRate = {16, 1};
constexpr std::array kNoiseNames = {"initial_noise", "noise.initial"};

}  // namespace

CosmosJob::CosmosJob(const RunConfig& request, CosmosCheckpoint& of, Log& log,
                     std::optional<CosmosRecording> recorded)
    : DitJob(request), checkpoint(of), recording(std::move(recorded)), log_(log) {
  is_recorded = recording.has_value();
  check_counts(config());
  check_task();
  plan_step_cache(checkpoint, checkpoint.runtime());
  if (continues()) plan_source();
  plan_size(log);
  if (source_frames_) check_source(fmt::format("{}", *source_frames_), *source_frames_);
  plan_steps();
  plan_texts(log);
}

// Pictures and clips have weights of their own.
void CosmosJob::check_task() const {
  const bool clip = config().makes == MediaKind::clip;
  if (clip == continues()) return;
  const Setting task = Setting::of("task", config().task);
  if (clip) {
    throw InputError(task,
                     "{} is a text2image model, which paints pictures from text; expected a "
                     "video2world model",
                     checkpoint.name());
  }
  throw InputError(task,
                   "{} is a video2world model, which goes on from a picture or a video; expected a "
                   "text2image model",
                   checkpoint.name());
}

// That a clip can be opened is found out here; its frames are decoded once, when they are needed.
void CosmosJob::plan_source() {
  const auto found =
      std::ranges::find_if(config().inputs, [](const InputItem& item) { return !item.is_text(); });
  if (found == config().inputs.end()) {
    throw InputError(Setting::of("task", config().task),
                     "{} goes on from a picture or a video, and none is given", checkpoint.name());
  }
  source_ = *found;
  if (is_recorded) return;
  if (source_.is_video()) {
    source_frames_ =
        about(Setting::of("video"), [&] { return ClipReader(source_.file()).facts().frames; });
  } else {
    read_input_size(source_.file());
  }
}

void CosmosJob::check_source(const std::string& text, std::int64_t frames) const {
  if (frames < size.frames) return;
  log_.warning_once(fmt::format(
      "--video: has {} frames, and the result of {} begins with its last ones: nothing is left to "
      "be made; expected a longer --video-frames or a shorter video",
      text, size.frames));
}

void CosmosJob::plan_size(Log& log) {
  const SamplingConfig& s = config().sampling;
  const std::int64_t step = checkpoint.pixels_per_row();
  size = {continues() ? s.frames : 1, s.height, s.width};
  for (const auto& [name, side] : {std::pair{"width", size.width}, {"height", size.height}}) {
    if (side % step != 0)
      throw InputError(Setting::of(name), "found {}, expected a multiple of {}", side, step);
  }
  const std::int64_t frames = WanVaeConfig::frames(WanVaeConfig::latent_frames(size.frames));
  if (frames != size.frames)
    log.warning_once(fmt::format("--video-frames {}: {} are made, one more than a multiple of {}",
                                 size.frames, frames, WanVaeConfig::kTemporal));
  size.frames = frames;
  const std::int64_t spatial = checkpoint.vae_config().spatial();
  latent = {WanVaeConfig::latent_frames(frames), size.height / spatial, size.width / spatial};
  const std::int64_t most = checkpoint.dit().most_positions();
  const auto check = [&](const char* name, std::int64_t positions) {
    if (positions > most)
      throw InputError(Setting::of(name), "makes {} positions on an axis, the model has {}",
                       positions, most);
  };
  check("video_frames", latent.frames);
  check("height", latent.height / CosmosConfig::kPatch);
  check("width", latent.width / CosmosConfig::kPatch);
}

// The last level is there twice, so the last step multiplies its velocity by 0: the latent behind
// it has the bits of the one before. Its forwards are for traces alone, which show them.
void CosmosJob::plan_steps() {
  const SamplingConfig& s = config().sampling;
  updates = is_traced() ? s.steps : s.steps - 1;
  branches = s.cfg_text_scale > 1 ? 2 : 1;
  const std::array<std::string_view, 1> source = {source_.is_video() ? "the input video"
                                                                     : "the input picture"};
  BranchSituation situation;
  if (continues()) situation.conditioned_by = source;
  why_sequential = diptych::why_sequential(situation);
}

void CosmosJob::plan_texts(Log& log) {
  const auto tokens = [&](const std::string& text, std::string_view setting) {
    return checkpoint.texts().tokenize(text, setting, log);
  };
  texts.push_back(tokens(config().prompt(), "prompt"));
  if (guided()) texts.push_back(tokens(config().negative_prompt, "negative_prompt"));
}

// The picture, or as many of a clip's last frames as the result has at most.
std::vector<Tensor> CosmosJob::read_source() {
  if (is_recorded) return recording->frames;
  const auto record = [&](const Tensor& frame, const std::string& hash) {
    inputs = {{hash, frame.size(1), frame.size(0)}};
  };
  if (!source_.is_video()) {
    const Tensor image = read_input(source_.file());
    record(image, tensor_hash(image));
    return {image};
  }
  std::deque<Tensor> last;
  about(Setting::of("video"), [&] {
    ClipReader clip(source_.file());
    while (auto frame = clip.next()) {
      last.push_back(std::move(frame->rgb));
      if (std::ssize(last) > size.frames) last.pop_front();
    }
    if (last.empty()) throw InputError("{}: has no frame", source_.file().string());
  });
  if (!source_frames_) check_source(fmt::format("at least {}", last.size()), std::ssize(last));
  record(last.front(), file_sha256(source_.file()).value_or(""));
  return {last.begin(), last.end()};
}

void CosmosJob::decode_inputs() {
  if (!config().noise.empty())
    noise = read_noise(
        config().noise, kNoiseNames,
        {1, checkpoint.dit().out_channels, latent.frames, latent.height, latent.width})[0];
  if (!continues()) return;
  check_interrupted();
  std::vector<Tensor> frames;
  // Stretched, as the video processor of diffusers does it.
  for (const Tensor& frame : read_source()) {
    check_interrupted();
    frames.push_back(resize_lanczos(frame, size.height, size.width));
  }
  const auto first = std::max<std::int64_t>(0, std::ssize(frames) - size.frames);
  given = at::stack(frames).narrow(0, first, std::ssize(frames) - first);
}

double CosmosJob::fps() const {
  return config().sampling.fps.value_or(kFrameRate).value();
}

std::optional<ClipShape> CosmosJob::clip_shape() const {
  if (!continues()) return std::nullopt;
  return ClipShape{size.frames, size.height, size.width,
                   config().sampling.fps.value_or(kFrameRate)};
}

}  // namespace diptych
