#include "lib/pipelines/wan/job.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>

#include <fmt/format.h>

#include "lib/base/error.h"
#include "lib/base/interrupt.h"
#include "lib/media/image_read.h"
#include "lib/media/resize.h"
#include "lib/pipelines/dit/branches.h"
#include "lib/pipelines/inputs.h"
#include "lib/pipelines/wan/teacache.h"
#include "lib/session/hashes.h"
#include "lib/text/prompt_cleaning.h"

namespace diptych {
namespace {

constexpr FrameRate kFrameRate = {16, 1};
constexpr double kTrainSteps = 1000;
constexpr std::array kNoiseNames = {"initial_latents", "noise.initial"};

// The shape of the picture within so many pixels, as the examples of diffusers choose it: both
// sides floored to the grid of latent rows.
ImageSize size_for(const ImageSize& picture, std::int64_t pixels, std::int64_t step) {
  const double aspect = static_cast<double>(picture.height) / static_cast<double>(picture.width);
  const auto side = [&](double exact) {
    return std::max(step, static_cast<std::int64_t>(std::llround(exact)) / step * step);
  };
  const auto area = static_cast<double>(pixels);
  return {side(std::sqrt(area * aspect)), side(std::sqrt(area / aspect))};
}

// "a,b,c,d,e", highest power first.
StepCacheCoefficients parse_coefficients(const std::string& text) {
  StepCacheCoefficients coefficients{};
  const auto bad = [&] {
    throw InputError(Setting::of("teacache_coefficients", text),
                     "expected {} finite numbers with commas between them", coefficients.size());
  };
  const char* at = text.data();
  const char* const end = at + text.size();
  for (std::size_t i = 0; i < coefficients.size(); ++i) {
    const auto [next, error] = std::from_chars(at, end, coefficients[i]);
    const bool last = i + 1 == coefficients.size();
    if (error != std::errc() || !std::isfinite(coefficients[i]) ||
        (last ? next != end : next == end || *next != ','))
      bad();
    at = last ? next : next + 1;
  }
  return coefficients;
}

}  // namespace

WanJob::WanJob(const RunConfig& request, WanCheckpoint& of, Log& log)
    : DitJob(request),
      checkpoint(of),
      settings(config().own.get<WanSettings>()),
      shared_keys(of.shared_keys()) {
  check_counts(config());
  const auto found = std::ranges::find_if(config().inputs, &InputItem::is_image);
  if (found != config().inputs.end()) picture = found->file();
  const std::string folder = checkpoint.folder().string();  // dummy weights may have none
  const std::string model = folder.empty() ? "this model" : "the model in " + folder;
  const bool reads = checkpoint.joins_picture() || checkpoint.index().expand_timesteps;
  if (!picture.empty() && !reads)
    throw InputError(Setting::of("task", config().task), "{} makes videos from text alone", model);
  if (picture.empty() && checkpoint.joins_picture())
    throw InputError(Setting::absent("image"),
                     "not given; {} makes videos that begin with a picture", model);
  plan_size(log);
  plan_steps();
  plan_cache();
  plan_texts(log);
}

void WanJob::plan_size(Log& log) {
  const SamplingConfig& s = config().sampling;
  const std::int64_t step = checkpoint.pixels_per_row();
  size = {config().makes == MediaKind::clip ? s.frames : 1, s.height, s.width};
  if (!picture.empty() && s.size_of_input) {
    const ImageSize fitted = size_for(read_input_size(picture), s.width * s.height, step);
    size.height = fitted.height;
    size.width = fitted.width;
  }
  for (const auto& [name, side] : {std::pair{"width", size.width}, {"height", size.height}}) {
    if (side % step != 0)
      throw InputError(Setting::of(name), "found {}, expected a multiple of {}", side, step);
  }
  const std::int64_t frames = WanVaeConfig::frames(WanVaeConfig::latent_frames(size.frames));
  if (frames != size.frames)
    log.warning_once(fmt::format("--video-frames {}: {} are made, one more than a multiple of {}",
                                 size.frames, frames, WanVaeConfig::kTemporal));
  size.frames = frames;
  const std::int64_t spatial = checkpoint.vae().config.spatial();
  latent = {WanVaeConfig::latent_frames(frames), size.height / spatial, size.width / spatial};
  const std::int64_t most = checkpoint.dit().rope_max_seq_len;
  const std::int64_t longest = std::max({latent.frames, latent.height / 2, latent.width / 2});
  if (longest > most)
    throw InputError(Setting::of(longest == latent.frames ? "video_frames" : "width"),
                     "makes {} positions on an axis, the model has {}", longest, most);
}

void WanJob::plan_steps() {
  const SamplingConfig& s = config().sampling;
  if (settings.sampler == FlowSampler::euler_karras)
    throw InputError(Setting::of("sampler", "euler_karras"),
                     "has the noise levels of Cosmos; expected another one for Wan");
  timesteps = make_flow_table(settings.sampler, s.steps, s.timestep_shift).timesteps;
  updates = std::ssize(timesteps);
  high_scale = s.cfg_text_scale;
  low_scale = settings.low_noise_scale > 0 ? settings.low_noise_scale : high_scale;
  branches = high_scale > 1 ? 2 : 1;  // decided once, as the reference does
  if (checkpoint.has_experts()) {
    const double ratio =
        settings.boundary > 0 ? settings.boundary : checkpoint.index().boundary_ratio.value_or(0);
    boundary = ratio * kTrainSteps;
  }
  std::vector<std::string_view> conditions;
  if (!picture.empty()) conditions.push_back("the input picture");
  why_sequential =
      diptych::why_sequential({.conditioned_by = conditions, .gated = settings.cfg_gate < 1});
}

// The published coefficients are those of the model, or the request has its own. Models without any
// go by a calibration, others if it is given.
void WanJob::plan_cache() {
  const bool has_none = checkpoint.has_experts() ||
                        (settings.teacache.empty() && checkpoint.index().expand_timesteps);
  if (config().cache_mode == StepCacheMode::teacache && has_none &&
      (settings.teacache_ret_steps || settings.teacache_first > 0)) {
    throw InputError(
        Setting::of(settings.teacache_ret_steps ? "teacache_ret_steps" : "teacache_first_steps"),
        SettingText{"has no effect on this model without ",
                    Setting::of("teacache_coefficients", "A,B,C,D,E"), ": a calibration decides"});
  }
  if (config().cache_mode != StepCacheMode::teacache || has_none ||
      !config().cache_calibration.empty())
    return plan_step_cache(checkpoint, checkpoint.runtime());
  using enum WanTeaCacheModel;
  const WanConfig& dit = checkpoint.dit();
  const bool large_picture = size.width * size.height > 832 * 480;
  const WanTeaCacheModel model = checkpoint.joins_picture()
                                     ? (large_picture ? i2v_14b_720p : i2v_14b_480p)
                                     : (dit.num_attention_heads <= 12 ? t2v_1_3b : t2v_14b);
  teacache = published_teacache(model, settings.teacache_ret_steps);
  teacache->threshold = config().cache_threshold;
  if (settings.teacache_first > 0) teacache->ret_steps = settings.teacache_first;
  if (!settings.teacache.empty()) teacache->coefficients = parse_coefficients(settings.teacache);
  teacache->check();
}

void WanJob::plan_texts(Log& log) {
  const auto cleaning = static_cast<PromptCleaning>(settings.cleaning);
  const auto tokens = [&](const std::string& text, std::string_view setting) {
    return checkpoint.texts().tokenize(clean_prompt(text, cleaning), setting, log);
  };
  texts.push_back(tokens(config().prompt(), "prompt"));
  if (guided()) texts.push_back(tokens(config().negative_prompt, "negative_prompt"));
}

void WanJob::decode_inputs() {
  if (!config().noise.empty())
    noise = read_noise(
        config().noise, kNoiseNames,
        {1, checkpoint.dit().out_channels, latent.frames, latent.height, latent.width})[0];
  if (picture.empty()) return;
  check_interrupted();
  image = read_input(picture);
  inputs = {{tensor_hash(image), image.size(1), image.size(0)}};
}

std::optional<ClipShape> WanJob::clip_shape() const {
  if (config().makes != MediaKind::clip) return std::nullopt;
  return ClipShape{size.frames, size.height, size.width,
                   config().sampling.fps.value_or(kFrameRate)};
}

// Nothing is compared from one expert to the other, nor with a branch that is left out.
std::int64_t WanJob::changes() const {
  const auto both = static_cast<std::int64_t>(settings.cfg_gate * static_cast<double>(updates));
  std::int64_t count = 0;
  for (std::int64_t i = 1; i < updates; ++i) {
    if (expert_of(i) == expert_of(i - 1)) count += guided() && i < both ? 2 : 1;
  }
  return count;
}

std::size_t WanJob::expert_of(std::int64_t step) const {
  const bool low = boundary && timesteps[static_cast<std::size_t>(step)] < *boundary;
  return low ? 1 : 0;
}

}  // namespace diptych
