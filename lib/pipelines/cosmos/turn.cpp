#include "lib/pipelines/cosmos/turn.h"

#include <utility>

#include <fmt/format.h>

#include "lib/base/error.h"
#include "lib/models/cosmos/frames.h"
#include "lib/pipelines/dit/branches.h"
#include "lib/pipelines/vae_media.h"
#include "lib/runtime/shared_branches.h"
#include "lib/sampling/video_guidance.h"
#include "lib/tensor/noise.h"

namespace diptych {
namespace {

std::string step_name(std::int64_t step, std::string_view what) {
  return fmt::format("step{:03}.{}", step, what);
}

// uint8 [n, H, W, 3] -> float32 [3, n, H, W] in -1..1
Tensor pixels_of(const Tensor& frames) {
  return frames.permute({3, 0, 1, 2}).to(at::kFloat).div_(255).mul_(2).sub_(1);
}

// [3, n, H, W] -> [3, count, H, W]: the last frame stays as long as it takes.
Tensor filled_up(const Tensor& pixels, std::int64_t count) {
  const std::int64_t n = pixels.size(1);
  if (n >= count) return pixels.narrow(1, 0, count);
  return at::cat({pixels, pixels.narrow(1, n - 1, 1).expand({-1, count - n, -1, -1})}, 1);
}

}  // namespace

CosmosTurn::CosmosTurn(DitJobs jobs)
    : jobs_(jobs_as<CosmosJob>(jobs)),
      job_(*jobs_.front()),
      runtime_(job_.checkpoint.runtime()),
      solver_(make_flow_solver(FlowSampler::euler_karras, job_.config().sampling.steps,
                               /*shift=*/1)) {}

void CosmosTurn::record_texts(TraceSink& trace) const {
  const auto record = [&](std::size_t text, const std::string& name) {
    const TokenIds& ids = job_.texts[text];
    const std::string tokens = name.empty() ? "prompt" : "negative";
    trace.record(fmt::format("tokens.{}_ids", tokens), at::tensor(ids, at::kLong).unsqueeze(0));
    trace.record(fmt::format("text.{}prompt_embeds_valid_rows", name),
                 job_.checkpoint.texts().rows(ids).unsqueeze(0));
  };
  record(0, "");
  if (job_.guided()) record(1, "negative_");
}

// The texts are encoded before. The negative ones come first, as in the batches of the reference.
void CosmosTurn::read_texts() {
  const CosmosTransformer& model = job_.checkpoint.transformer();
  std::vector<Tensor> rows;
  for (std::size_t text = job_.texts.size(); text-- > 0;) {
    for (const CosmosJob* job : jobs_)
      rows.push_back(job_.checkpoint.texts().rows(job->texts[text]));
  }
  CosmosClip clip;
  clip.size = job_.latent;
  clip.known_frames = known_;
  if (job_.continues()) clip.fps = job_.fps();
  const SharedKeys shared = job_.checkpoint.shared_keys();
  Reading reading;
  reading.context = model.make_context(rows, runtime_.kernels);
  const RowShare share = {runtime_.ranks.get()};
  reading.together = model.plan(reading.context, clip, shared, share);
  for (std::int64_t branch = 0; branch < job_.branches; ++branch) {
    const auto place = static_cast<std::size_t>(branch);
    reading.one[place] = reading.context.slice(branch * count(), count());
    reading.alone[place] = model.plan(reading.one[place], clip, shared, share);
  }
  reading_ = std::move(reading);
}

// Latent frames do not see later ones, so those behind the known ones are encoded for traces alone.
void CosmosTurn::encode_frames(TraceSink* trace) {
  const Tensor pixels = pixels_of(job_.given);
  known_ = cosmos_known_frames(pixels.size(1), job_.size.frames);
  const Tensor frames =
      filled_up(pixels, trace == nullptr ? WanVaeConfig::frames(known_) : job_.size.frames);
  const WanVae& vae = job_.checkpoint.vae();
  const std::optional<WanVaeTiling> tiling = job_.checkpoint.tiling();
  moments_ = tiling ? vae.encode(frames, *tiling) : vae.encode(frames);
  if (trace == nullptr) return;
  trace->record("cond.pixels", pixels.unsqueeze(0));
  const CosmosLatentSize& size = job_.latent;
  Tensor indicator = at::zeros({1, 1, size.frames, 1, 1});
  indicator.narrow(2, 0, known_).fill_(1);
  trace->record("cond.indicator", indicator);
  trace->record("cond.mask", indicator.expand({-1, -1, -1, size.height, size.width}));
}

// A sample of the posterior, not its mode. The noise of all frames is drawn, whatever is encoded,
// since the initial noise comes behind it from the same generator.
void CosmosTurn::read_frames(std::uint64_t seed, TraceSink* trace) {
  if (!moments_) encode_frames(trace);
  const CosmosLatentSize& size = job_.latent;
  generator_ = cpu_generator(seed);
  Tensor noise = randn(
      {1, job_.checkpoint.dit().out_channels, size.frames, size.height, size.width}, generator_)[0];
  if (job_.recording) noise = job_.recording->posterior_noise;
  const Tensor& mean = moments_->mean;
  const Tensor eps = noise.narrow(1, 0, mean.size(1)).to(mean.device());
  known_latents_ =
      job_.checkpoint.vae().normalise(moments_->sample(eps)).to(runtime_.device).unsqueeze(0);
  if (trace != nullptr) trace->record("cond.latents", known_latents_);
}

void CosmosTurn::read(std::uint64_t seed, TraceSink* trace) {
  if (trace != nullptr) record_texts(*trace);
  if (job_.continues()) read_frames(seed, trace);
  if (!reading_) read_texts();
}

// Latents are kept as x0 + sigma * noise.
Tensor CosmosTurn::start(std::span<const std::uint64_t> seeds, TraceSink* trace) {
  const CosmosLatentSize& size = job_.latent;
  std::vector<Tensor> noise;
  for (std::size_t i = 0; i < jobs_.size(); ++i) {
    const CosmosJob& job = *jobs_[i];
    if (job.recording || job.noise.defined()) {
      noise.push_back((job.recording ? job.recording->noise : job.noise).unsqueeze(0));
      continue;
    }
    if (!reading_draws()) generator_ = cpu_generator(seeds[i]);
    noise.push_back(randn(
        {1, job.checkpoint.dit().out_channels, size.frames, size.height, size.width}, generator_));
  }
  if (trace != nullptr) {
    trace->record("schedule.timesteps", at::tensor(solver_.timesteps()));
    trace->record("schedule.sigmas", at::tensor(solver_.sigmas()));
  }
  solver_.reset();
  cache_.begin(job_.step_cache, job_.updates);
  return at::cat(noise).to(runtime_.device) * sigma(0);
}

// What the network is told of a step: float32, one for a picture, [frames] of a clip.
Tensor CosmosTurn::times(std::int64_t step) const {
  const float time = Preconditioning::rectified_flow(sigma(step)).time;
  if (!job_.continues()) return at::full({1}, time, at::kFloat);
  const float known = Preconditioning::rectified_flow(kCosmosKnownSigma).time;
  return frame_times(time, known, known_, job_.latent.frames);
}

Tensor CosmosTurn::with_known(const Tensor& x) const {
  return known_ == 0 ? x : with_known_frames(x, known_latents_, known_);
}

// x [jobs, C, F, h, w] -> the same of what the network sees.
Tensor CosmosTurn::model_input(const Tensor& x, std::int64_t step) const {
  return with_known(Preconditioning::rectified_flow(sigma(step)).input(x));
}

bool CosmosTurn::is_shown(std::int64_t step) const {
  return step == 0 || step == solver_.steps() - 1;
}

// Recorded runs show either the branches or their batch: here each mode shows both. Positions are
// common to the branches.
CosmosObserver CosmosTurn::observer_of(const Call& call, std::int64_t step, TraceSink* trace) {
  if (trace == nullptr || !is_shown(step)) return {};
  const auto record = [=](std::string_view branch, std::string_view name, const Tensor& value) {
    trace->record(step_name(step, fmt::format("{}.{}", branch, name)), value);
  };
  const auto is_common = [](std::string_view name) { return name.starts_with("rope_"); };
  if (call.plan->samples > 1) {
    return [=](std::string_view name, const Tensor& value) {
      const std::int64_t half = is_common(name) ? 0 : value.size(0) / 2;
      record("batch", name, value);
      record("uncond", name, half == 0 ? value : value.narrow(0, 0, half));
      record("cond", name, half == 0 ? value : value.narrow(0, half, half));
    };
  }
  return [=, this](std::string_view name, const Tensor& value) {
    record(call.name, name, value);
    const std::string batch = step_name(step, fmt::format("batch.{}", name));
    if (!trace->wants(batch)) return;
    if (call.name == "cond") {
      cond_seen_[batch] = value.clone();
    } else if (const auto seen = cond_seen_.find(batch); seen != cond_seen_.end()) {
      trace->record(batch, is_common(name) ? value : at::cat({value, seen->second}));
    }
  };
}

// input [jobs, C, F, h, w] -> the network's output [samples, C, F, h, w].
Tensor CosmosTurn::forward(const Call& call, const Tensor& input, std::int64_t step,
                           TraceSink* trace) {
  const CosmosTransformer& model = job_.checkpoint.transformer();
  const CosmosPlan& plan = *call.plan;
  const CosmosObserver observer = observer_of(call, step, trace);
  Tensor of_samples = times(step).unsqueeze(0).expand({plan.samples, -1});
  if (!job_.continues()) of_samples = of_samples.flatten();
  const CosmosTime time =
      model.embed_time(plan, of_samples.contiguous(), runtime_.kernels, observer);
  const Tensor latents = of_branches(input, plan.samples / count());
  Tensor x = model.embed_latents(plan, latents, runtime_.kernels, observer);
  const auto run = [&](Tensor rows) {
    forwards_ += plan.samples;
    return model.run_blocks(plan, *call.context, time, std::move(rows),
                            runtime_.paint_attention.of(AttentionRole::self), runtime_.kernels,
                            observer);
  };
  const auto modulate = [&](const Tensor& rows) {
    return model.modulated_input(plan, time, rows, runtime_.kernels);
  };
  x = caches_ ? cache_.rows({step, call.first, plan.samples, 0}, std::move(x), modulate, run)
              : run(std::move(x));
  return model.head(plan, time, x, runtime_.kernels, observer);
}

CosmosTurn::Branches CosmosTurn::outputs(const Tensor& input, std::int64_t step, TraceSink* trace) {
  if (job_.guided() && batched_) {
    const Tensor both =
        forward({0, &reading_->together, &reading_->context, "batch"}, input, step, trace);
    return {both.narrow(0, count(), count()), both.narrow(0, 0, count())};
  }
  const auto alone = [&](std::int64_t branch, std::string_view name) {
    const auto place = static_cast<std::size_t>(branch);
    return forward({branch, &reading_->alone[place], &reading_->one[place], name}, input, step,
                   trace);
  };
  if (job_.guided() && shares_branches(runtime_.ranks.get())) {
    const std::int64_t before = forwards_;
    const std::vector<Tensor> all = share_branches(*runtime_.ranks, 2, [&](std::int64_t i) {
      return i == 0 ? alone(job_.branches - 1, "cond") : alone(0, "uncond");
    });
    forwards_ += forwards_ - before;  // the other rank's
    return {all[0], all[1]};
  }
  Branches out;
  out.cond = alone(job_.branches - 1, "cond");
  if (job_.guided()) out.uncond = alone(0, "uncond");
  return out;
}

void CosmosTurn::time_step(const Tensor& x) {
  const bool caches = std::exchange(caches_, false);
  outputs(model_input(x, 0), 0, nullptr);
  caches_ = caches;
}

Tensor CosmosTurn::guided_x0(const Tensor& x, const Branches& out, std::int64_t step,
                             TraceSink* trace) const {
  const Preconditioning at_sigma = Preconditioning::rectified_flow(sigma(step));
  const Tensor cond = with_known(at_sigma.denoised(x, out.cond));
  Tensor guided = cond, uncond;
  if (out.uncond.defined()) {
    uncond = with_known(at_sigma.denoised(x, out.uncond));
    guided = guide_x0(cond, uncond, job_.config().sampling.cfg_text_scale);
  }
  if (trace == nullptr) return guided;
  trace->record(step_name(step, "out_cond"), out.cond);
  trace->record(step_name(step, "x0_cond"), cond);
  trace->record(step_name(step, "x0_guided"), guided);
  if (!uncond.defined()) return guided;
  trace->record(step_name(step, "out_uncond"), out.uncond);
  trace->record(step_name(step, "x0_uncond"), uncond);
  return guided;
}

Tensor CosmosTurn::step(const Tensor& x, std::int64_t i, TraceSink* trace) {
  const Tensor input = model_input(x, i);
  const Branches out = outputs(input, i, trace);
  const Tensor velocity = (x - guided_x0(x, out, i, trace)) / sigma(i);
  Tensor next = solver_.step(i, velocity, x);
  if (trace == nullptr) return next;
  const Tensor t = times(i);
  trace->record(step_name(i, "sigma"), at::scalar_tensor(sigma(i), at::kFloat));
  trace->record(step_name(i, "t_model"), job_.continues() ? t.view({1, 1, -1, 1, 1}) : t);
  trace->record(step_name(i, "model_input"), input);
  trace->record(step_name(i, "velocity"), velocity);
  trace->record(step_name(i, "latent"), next);
  return next;
}

Media CosmosTurn::decode(const Tensor& latent, Log& log, TraceSink* trace) {
  const WanVae& vae = job_.checkpoint.vae();
  const LatentFrames source = {vae,
                               latent.permute({1, 2, 3, 0}).contiguous(),
                               log,
                               runtime_.ranks.get(),
                               job_.checkpoint.tiling(),
                               cosmos_frames_to_uint8};
  if (trace == nullptr) return decode_media(source, job_.clip_shape());
  trace->record("final.latent", latent.unsqueeze(0));
  trace->record("vae.latent_denormalized", vae.denormalise(latent).unsqueeze(0));
  std::vector<Tensor> seen;
  Media media = decode_media(source, job_.clip_shape(), [&](const Tensor& frames, const Tensor&) {
    seen.push_back(frames.to(at::kCPU));
  });
  trace->record("vae.decoded", at::cat(seen, 1).unsqueeze(0));
  return media;
}

}  // namespace diptych
