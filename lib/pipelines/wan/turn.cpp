#include "lib/pipelines/wan/turn.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "lib/base/error.h"
#include "lib/media/resize.h"
#include "lib/pipelines/dit/branches.h"
#include "lib/pipelines/vae_media.h"
#include "lib/runtime/shared_branches.h"
#include "lib/tensor/noise.h"

namespace diptych {
namespace {

constexpr std::int64_t kMaskChannels = 4;  // of a picture's condition: a latent frame's four frames

// uint8 [H, W, 3] of any size -> float32 [3, 1, height, width] in -1..1, not keeping the shape: as
// the video processor of diffusers.
Tensor picture_pixels(const Tensor& image, const DitFrames& size) {
  const Tensor fitted = resize_lanczos(image, size.height, size.width);
  return fitted.permute({2, 0, 1}).to(at::kFloat).div(255).mul(2).sub(1).unsqueeze(1);
}

GuidanceGate gate_of(const WanJob& job) {
  return {job.settings.cfg_gate, job.updates, Setting::of("cfg_gate")};
}

std::string step_name(std::int64_t step, std::string_view what) {
  return fmt::format("step{:03}.{}", step, what);
}

}  // namespace

WanTurn::WanTurn(DitJobs jobs)
    : jobs_(jobs_as<WanJob>(jobs)),
      job_(*jobs_.front()),
      runtime_(job_.checkpoint.runtime()),
      solver_(make_flow_solver(job_.settings.sampler, job_.config().sampling.steps,
                               job_.config().sampling.timestep_shift)),
      gate_(gate_of(job_)) {}

// Texts are encoded before; their contexts are made when an expert first runs.
void WanTurn::read(std::uint64_t, TraceSink* trace) {
  if (trace != nullptr) {
    const auto ids = [&](std::size_t text) {
      return at::tensor(job_.texts[text], at::kLong).unsqueeze(0);
    };
    const auto rows = [&](std::size_t text) {
      return job_.checkpoint.texts().rows(job_.texts[text]).unsqueeze(0);
    };
    trace->record("tokens.prompt_ids", ids(0));
    trace->record("text.prompt_embeds_valid_rows", rows(0));
    if (job_.guided()) {
      trace->record("tokens.negative_ids", ids(1));
      trace->record("text.negative_prompt_embeds_valid_rows", rows(1));
    }
  }
  if (!job_.picture.empty()) read_picture(trace);
}

// The rows that the vision tower makes of the picture: [rows, image_dim].
Tensor WanTurn::look(TraceSink* trace) const {
  const WanCheckpoint& checkpoint = job_.checkpoint;
  const Tensor pixels = checkpoint.image_processor().pixels(job_.image);
  ClipVisionObserver observer;
  if (trace != nullptr) {
    trace->record("image.clip_pixels", pixels);
    // Nothing reads what the last layer gives.
    trace->leave_out(
        fmt::format("image.clip_hidden{:02}", checkpoint.vision().config.num_hidden_layers));
    observer = [trace](std::string_view name, const Tensor& value) {
      trace->record(fmt::format("image.{}", name), value);
    };
  }
  const Tensor rows =
      checkpoint.vision().forward(pixels.to(runtime_.device, runtime_.dtype),
                                  runtime_.paint_attention.of(AttentionRole::self), observer);
  if (trace != nullptr) trace->record("image.embeds", rows);
  return rows[0];
}

void WanTurn::read_picture(TraceSink* trace) {
  WanCheckpoint& checkpoint = job_.checkpoint;
  const WanVae& vae = checkpoint.vae();
  const Tensor pixels = picture_pixels(job_.image, job_.size);
  if (trace != nullptr) trace->record("image.vae_pixels", pixels.permute({1, 0, 2, 3}));
  if (checkpoint.sees_picture()) clip_rows_ = look(trace);
  if (!checkpoint.joins_picture()) {
    condition_ = vae.encode(pixels).mu.to(runtime_.device).unsqueeze(0);
    if (trace != nullptr) {
      Tensor mask = at::ones({1, 1, job_.latent.frames, job_.latent.height, job_.latent.width});
      mask.select(2, 0).zero_();
      trace->record("image.first_frame_mask", mask);
      trace->record("image.condition", condition_);
    }
    return;
  }
  // The picture, and grey frames behind it.
  const DitFrames& size = job_.size;
  const Tensor grey = at::zeros({3, size.frames - 1, size.height, size.width});
  const Tensor latent = vae.encode(at::cat({pixels, grey}, 1)).mu.to(runtime_.device);
  Tensor mask = at::zeros(
      {kMaskChannels, job_.latent.frames, job_.latent.height, job_.latent.width}, latent.options());
  mask.select(1, 0).fill_(1);
  condition_ = at::cat({mask, latent}).unsqueeze(0);
  if (trace != nullptr) trace->record("image.condition", condition_);
}

Tensor WanTurn::start(std::span<const std::uint64_t> seeds, TraceSink* trace) {
  const WanLatentSize& latent = job_.latent;
  std::vector<Tensor> noise;
  for (std::size_t i = 0; i < jobs_.size(); ++i) {
    const WanJob& job = *jobs_[i];
    if (job.recorded_noise.defined() || job.noise.defined()) {
      noise.push_back((job.recorded_noise.defined() ? job.recorded_noise : job.noise).unsqueeze(0));
      continue;
    }
    at::Generator generator = cpu_generator(seeds[i]);
    noise.push_back(
        randn({1, job.checkpoint.dit().out_channels, latent.frames, latent.height, latent.width},
              generator));
  }
  if (trace != nullptr) {
    const bool whole = is_unipc(solver_.sampler());
    const Tensor times = at::tensor(solver_.timesteps());
    trace->record("schedule.timesteps", whole ? times.to(at::kLong) : times);
    trace->record("schedule.sigmas", at::tensor(solver_.sigmas()));
  }
  solver_.reset();
  gate_.reset();
  computes_.clear();
  residuals_.clear();
  cache_.begin(job_.step_cache, job_.updates);
  return at::cat(noise).to(runtime_.device);
}

// value: [branches, rows, width], of the first step.
void WanTurn::record_context(TraceSink& trace, std::string_view name, const Tensor& value) const {
  const auto record = [&](std::string_view branch, const Tensor& rows) {
    trace.record(step_name(0, fmt::format("{}.{}", branch, name)), rows);
  };
  record("cond", value.narrow(0, value.size(0) - 1, 1));
  if (!job_.guided()) return;
  record("uncond", value.narrow(0, 0, 1));
  record("batch", value);
}

// The negative texts first, as the batches of the reference have it.
const WanTurn::Reading& WanTurn::reading(std::size_t expert, TraceSink* trace) {
  const WanTransformer& model = job_.checkpoint.expert(expert);
  if (!job_.checkpoint.keeps_experts()) readings_[1 - expert].reset();
  if (readings_[expert]) return *readings_[expert];
  WanTexts texts;
  for (std::size_t text = job_.texts.size(); text-- > 0;) {
    for (const WanJob* job : jobs_)
      texts.rows.push_back(job_.checkpoint.texts().rows(job->texts[text]));
  }
  texts.image = clip_rows_;
  Reading reading;
  WanObserver observer;
  if (trace != nullptr) {
    observer = [&](std::string_view name, const Tensor& value) {
      record_context(*trace, name, value);
    };
  }
  reading.context = model.make_context(texts, runtime_.kernels, observer);
  const SharedKeys shared = job_.shared_keys;
  const RowShare share = {runtime_.ranks.get()};
  reading.together = model.plan(reading.context, job_.latent, shared, share);
  for (std::int64_t branch = 0; branch < branches(); ++branch) {
    const auto place = static_cast<std::size_t>(branch);
    reading.one[place] = reading.context.slice(branch * count(), count());
    reading.alone[place] = model.plan(reading.one[place], job_.latent, shared, share);
  }
  return readings_[expert].emplace(std::move(reading));
}

// float32 [samples] or, where every row has its own, [samples, rows].
Tensor WanTurn::timesteps(std::int64_t step, std::int64_t samples) const {
  const float t = solver_.timesteps()[static_cast<std::size_t>(step)];
  if (!job_.checkpoint.index().expand_timesteps) return at::full({samples}, t, at::kFloat);
  Tensor rows = at::full({samples, job_.latent.rows()}, t, at::kFloat);
  if (condition_.defined()) rows.narrow(1, 0, job_.latent.rows() / job_.latent.frames).zero_();
  return rows;
}

// What the network sees of the latents, float32 [jobs, in_channels, F, h, w].
Tensor WanTurn::model_input(const Tensor& x) const {
  if (!condition_.defined()) return x;
  if (job_.checkpoint.joins_picture()) return at::cat({x, condition_}, 1);
  return at::cat({condition_, x.narrow(2, 1, x.size(2) - 1)}, 2);
}

bool WanTurn::is_shown(std::int64_t step) const {
  return step == 0 || step == job_.updates - 1;
}

// Which steps of TeaCache are computed: known ahead, since what is compared depends on the timestep
// alone.
void WanTurn::plan_cache(const WanTransformer& model, const WanPlan& plan) {
  std::vector<Tensor> modulations;
  for (std::int64_t i = 0; i < job_.updates; ++i) {
    const WanTime time = model.embed_time(plan, timesteps(i, plan.samples), runtime_.kernels);
    const Tensor& compared = job_.teacache->use_ret_steps ? time.timestep_proj : time.temb;
    modulations.push_back(compared.narrow(0, compared.size(0) - 1, 1));
  }
  computes_ = plan_timestep_teacache(*job_.teacache, at::cat(modulations));
}

std::string WanTurn::step_note() const {
  if (!caches_) return {};
  if (!job_.teacache) return cache_.note();
  if (computes_.empty()) return {};
  return fmt::format("TeaCache computed {} of {} steps", std::ranges::count(computes_, true),
                     computes_.size());
}

// x is consumed.
Tensor WanTurn::run_blocks(const WanTransformer& model, const Call& call, const WanTime& time,
                           Tensor x, std::int64_t step, const WanObserver& observer) {
  const auto run = [&](Tensor rows) {
    forwards_ += call.plan->samples;
    return model.run_blocks(*call.plan, *call.context, time, std::move(rows),
                            runtime_.paint_attention.of(AttentionRole::self), runtime_.kernels,
                            observer);
  };
  if (!caches_) return run(std::move(x));
  if (!job_.teacache) {
    const auto modulate = [&](const Tensor& rows) {
      return model.modulated_input(*call.plan, time, rows, runtime_.kernels);
    };
    return cache_.rows({step, call.first, call.plan->samples, job_.expert_of(step)}, std::move(x),
                       modulate, run);
  }
  if (computes_.empty()) plan_cache(model, *call.plan);
  if (!computes_[static_cast<std::size_t>(step)]) return residuals_.predict(call.first, x);
  const Tensor before = x.clone();
  Tensor after = run(std::move(x));
  residuals_.store(call.first, before, after);
  return after;
}

// Recorded runs show either the branches or their batch: here each mode shows both.
WanObserver WanTurn::observer_of(const Call& call, std::int64_t step, TraceSink* trace) {
  if (trace == nullptr || !is_shown(step)) return {};
  const auto record = [=](std::string_view branch, std::string_view name, const Tensor& value) {
    trace->record(step_name(step, fmt::format("{}.{}", branch, name)), value);
  };
  if (call.plan->samples > 1) {
    return [=](std::string_view name, const Tensor& value) {
      // Tables of every row count the samples' one behind the other; rope's are of all samples.
      const bool split = value.size(0) == 2 || name == "timestep_sinusoid";
      const std::int64_t own = value.size(0) / 2;
      record("batch", name, value);
      record("uncond", name, split ? value.narrow(0, 0, own) : value);
      record("cond", name, split ? value.narrow(0, own, own) : value);
    };
  }
  return [=, this](std::string_view name, const Tensor& value) {
    record(call.name, name, value);
    const std::string batch = step_name(step, fmt::format("batch.{}", name));
    if (!trace->wants(batch)) return;
    if (name.starts_with("rope_")) {  // of all samples
      if (call.name == "cond") trace->record(batch, value);
    } else if (call.name == "cond") {
      cond_seen_[batch] = value.clone();
    } else if (const auto seen = cond_seen_.find(batch); seen != cond_seen_.end()) {
      trace->record(batch, at::cat({value, seen->second}));
    }
  };
}

// -> velocities [samples, C, F, h, w].
Tensor WanTurn::forward(const Call& call, const Tensor& input, std::int64_t step,
                        TraceSink* trace) {
  const WanTransformer& model = job_.checkpoint.expert(job_.expert_of(step));
  const std::int64_t samples = call.plan->samples;
  const WanObserver observer = observer_of(call, step, trace);
  const Tensor times = timesteps(step, samples);
  if (trace != nullptr && times.dim() == 2 && (samples > 1 || call.name == "cond"))
    trace->record(step_name(step, "token_timesteps"), times.narrow(0, 0, 1));
  const WanTime time = model.embed_time(*call.plan, times, runtime_.kernels, observer);
  const Tensor latents = of_branches(input, samples / count());
  Tensor x = model.embed_latents(*call.plan, latents, runtime_.kernels, observer);
  x = run_blocks(model, call, time, std::move(x), step, observer);
  return model.head(*call.plan, time, x, runtime_.kernels, observer);
}

WanTurn::Velocities WanTurn::velocities(const Tensor& x, std::int64_t step, bool both,
                                        TraceSink* trace) {
  const Reading& reading = this->reading(job_.expert_of(step), step == 0 ? trace : nullptr);
  const Tensor input = model_input(x);
  if (both && batched_) {
    const Tensor v =
        forward({.plan = &reading.together, .context = &reading.context, .name = "batch"}, input,
                step, trace);
    return {v.narrow(0, count(), count()), v.narrow(0, 0, count())};
  }
  const auto alone = [&](std::int64_t branch, std::string_view name) {
    const auto place = static_cast<std::size_t>(branch);
    return forward({.first = branch,
                    .plan = &reading.alone[place],
                    .context = &reading.one[place],
                    .name = name},
                   input, step, trace);
  };
  if (both && shares_branches(runtime_.ranks.get())) {
    const std::int64_t before = forwards_;
    const std::vector<Tensor> all = share_branches(*runtime_.ranks, 2, [&](std::int64_t i) {
      return i == 0 ? alone(branches() - 1, "cond") : alone(0, "uncond");
    });
    forwards_ += forwards_ - before;  // the other rank's
    return {all[0], all[1]};
  }
  Velocities v;
  v.cond = alone(branches() - 1, "cond");
  if (both) v.uncond = alone(0, "uncond");
  return v;
}

void WanTurn::time_step(const Tensor& x) {
  const bool caches = std::exchange(caches_, false);
  velocities(x, 0, branches() > 1, nullptr);
  caches_ = caches;
}

// The guided velocity, in the model's dtype as the reference combines it.
Tensor WanTurn::guide(const Velocities& v, std::int64_t step, TraceSink* trace) {
  if (!job_.guided()) return v.cond;
  const double scale = job_.scale(job_.expert_of(step));
  Tensor guided =
      gate_.on() ? gate_.guide(v.cond, v.uncond, scale) : diptych::guide(v.cond, v.uncond, scale);
  const double phi = job_.settings.guidance_rescale;
  if (trace != nullptr) {
    trace->record(step_name(step, "v_guided"), guided);
    if (v.uncond.defined()) trace->record(step_name(step, "v_uncond"), v.uncond);
    if (phi > 0) {
      const auto deviation = [](const Tensor& values) { return values.std().view({1}); };
      trace->record(step_name(step, "std_cond"), deviation(v.cond));
      trace->record(step_name(step, "std_guided"), deviation(guided));
    }
  }
  if (phi <= 0) return guided;
  guided = rescale_guidance(guided, v.cond, phi);
  if (trace != nullptr) trace->record(step_name(step, "v_rescaled"), guided);
  return guided;
}

Tensor WanTurn::step(const Tensor& x, std::int64_t i, TraceSink* trace) {
  const std::size_t expert = job_.expert_of(i);
  const bool both =
      job_.guided() && (!gate_.on() || gate_.begin_step(i, static_cast<std::int64_t>(expert)));
  const Velocities v = velocities(x, i, both, trace);
  const Tensor guided = guide(v, i, trace);
  const Tensor next = solver_.step(i, guided, x);
  if (trace == nullptr) return next;
  const float t = solver_.timesteps()[static_cast<std::size_t>(i)];
  const bool whole = is_unipc(solver_.sampler());
  trace->record(step_name(i, "t"), whole
                                       ? at::scalar_tensor(static_cast<std::int64_t>(t), at::kLong)
                                       : at::scalar_tensor(t, at::kFloat));
  trace->record(step_name(i, "v_cond"), v.cond);
  trace->record(step_name(i, "latent"), next);
  if (const UniPcState* unipc = solver_.unipc()) {
    trace->record(step_name(i, "x0_pred"), unipc->x0());
    trace->record(step_name(i, "corrected_sample"), unipc->corrected());
    const auto order = unipc->schedule().steps[static_cast<std::size_t>(i)].predictor_order;
    trace->record(step_name(i, "predictor_order"), at::tensor({order}, at::kLong));
  }
  return next;
}

// The first frame of TI2V is the picture's.
Tensor WanTurn::finish(const Tensor& x) {
  if (!condition_.defined() || job_.checkpoint.joins_picture()) return x;
  return model_input(x);
}

Media WanTurn::decode(const Tensor& latent, Log& log, TraceSink* trace) {
  const WanVae& vae = job_.checkpoint.vae();
  const LatentFrames source = {vae, latent.permute({1, 2, 3, 0}).contiguous(), log,
                               runtime_.ranks.get(), job_.checkpoint.tiling()};
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
