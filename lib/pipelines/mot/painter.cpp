#include "lib/pipelines/mot/painter.h"

#include <tuple>
#include <utility>

#include <ATen/record_function.h>
#include <fmt/format.h>

#include "lib/base/interrupt.h"
#include "lib/pipelines/mot/trace.h"
#include "lib/session/session.h"

namespace diptych {

std::vector<std::int64_t> PaintRequest::block_rows() const {
  std::vector<std::int64_t> rows;
  for (const LatentSize& size : sizes) rows.push_back(size.rows() + 2);
  return rows;
}

std::vector<BranchContexts> PaintRequest::needed(std::vector<BranchContexts> all,
                                                 bool tracing) const {
  const FlowSchedule flow = schedule();
  bool uses_text = false, uses_image = false;
  for (const float t : std::span(flow.times).first(static_cast<std::size_t>(flow.updates()))) {
    uses_text |= guidance.uses_text(t);
    uses_image |= guidance.uses_image(t);
  }
  // TaylorSeer counts each branch's calls: one that sets in after cond has begun is at another
  // place of the schedule, even where both have read the same.
  const bool late =
      step_cache.mode == StepCacheMode::taylorseer && !guidance.active(flow.times.front());
  std::vector<BranchContexts> branches = {std::move(all[0])};
  const auto add = [&](BranchContexts& branch, bool used) {
    if (!used && !tracing) return;
    branch.counts_apart = late && used;
    branches.push_back(std::move(branch));
  };
  add(all[1], uses_text);
  add(all[2], uses_image);
  return branches;
}

std::int64_t contexts_at(float t, const Guidance& guidance, const PrefilledContexts& contexts) {
  const std::int64_t text = guidance.uses_text(t) ? *contexts.context_of("text_uncond") : 0;
  const std::int64_t image = guidance.uses_image(t) ? *contexts.context_of("img_uncond") : 0;
  return std::max(text, image) + 1;
}

// Experts that come from the host and operations that look at values on the host cannot be
// captured.
bool captures_steps(const PaintRequest& request, const BagelCheckpoint& checkpoint,
                    const Runtime& runtime) {
  return request.step_graphs && runtime.kernels != KernelPolicy::reference &&
         !checkpoint.model.language_model.layers.streams({.und = true, .gen = true});
}

BagelPainter::BagelPainter(const BagelCheckpoint& checkpoint, PaintRequest request,
                           PrefilledContexts contexts, const Runtime& runtime)
    : checkpoint_(checkpoint),
      runtime_(runtime),
      request_(std::move(request)),
      schedule_(request_.schedule()),
      contexts_(std::move(contexts)),
      denoiser_(checkpoint.model, contexts_, request_.sizes, checkpoint.markers, schedule_,
                request_.cfg_mode, runtime, request_.step_cache) {}

Tensor BagelPainter::combine(const Tensor& cond, const Tensor& text, const Tensor& image) const {
  const Guidance& guidance = request_.guidance;
  if (request_.sizes.size() == 1 || request_.renorm_whole_batch)
    return guidance.combine(cond, text, image);
  std::vector<Tensor> guided;
  std::int64_t row = 0;
  for (const LatentSize& size : request_.sizes) {
    const auto part = [&](const Tensor& all) {
      return all.defined() ? all.narrow(0, row, size.rows()) : Tensor();
    };
    guided.push_back(guidance.combine(part(cond), part(text), part(image)));
    row += size.rows();
  }
  return at::cat(guided);
}

BagelPainter::StepKind BagelPainter::kind_of(float t) const {
  const Guidance& guidance = request_.guidance;
  return {guidance.uses_text(t), guidance.uses_image(t), contexts_at(t, guidance, contexts_)};
}

// v: of the first contexts.
Tensor BagelPainter::guide(const std::vector<Tensor>& v, const StepKind& kind) const {
  const auto pick = [&](bool used, std::string_view branch) {
    return used ? v[static_cast<std::size_t>(*contexts_.context_of(branch))] : Tensor();
  };
  return combine(v.front(), pick(kind.text, "text_uncond"), pick(kind.image, "img_uncond"));
}

Tensor BagelPainter::guided_velocity(const Tensor& x, std::int64_t step) const {
  const float t = schedule_.times[static_cast<std::size_t>(step)];
  const Guidance& guidance = request_.guidance;
  const StepKind kind = kind_of(t);
  const std::vector<Tensor> v = denoiser_.velocities(x, step, kind.contexts);
  const Tensor guided = guide(v, kind);
  if (runtime_.trace != nullptr) {
    TraceSink& trace = *runtime_.trace;
    const auto record = [&](std::string_view what, const Tensor& value) {
      trace.record(fmt::format("step{:03}.{}", step, what), value);
    };
    const auto branch = [&](std::string_view name) {
      return v[static_cast<std::size_t>(*contexts_.context_of(name))];
    };
    record("t", at::full({1}, t, at::kFloat));
    record("v_cond", v.front());
    if (kind.text) record("v_text_uncond", branch("text_uncond"));
    // The official code runs this branch whenever the image scale is above 1, used or not; where
    // its context is cond's, its velocity is too.
    if (guidance.active(t) && guidance.image_scale > 1 &&
        *contexts_.context_of("img_uncond") < static_cast<std::int64_t>(v.size())) {
      record("v_img_uncond", branch("img_uncond"));
    }
    record("v_guided", guided);
  }
  return guided;
}

Tensor BagelPainter::integrate_by_step(const Tensor& noise, Progress& progress) const {
  const auto velocity = [&](const Tensor& x, std::int64_t step) {
    check_interrupted();
    return guided_velocity(x, step);
  };
  const auto after = [&](const Tensor& x, std::int64_t step) {
    if (runtime_.trace != nullptr) runtime_.trace->record(fmt::format("step{:03}.latent", step), x);
    progress.update(step + 1);
  };
  return integrate(schedule_, noise.to(runtime_.device), velocity, after);
}

BagelPainter::DeviceSteps BagelPainter::make_device_steps() const {
  std::vector<float> sizes;
  std::int64_t rows = 0;
  for (std::int64_t i = 0; i < schedule_.updates(); ++i) sizes.push_back(schedule_.step_size(i));
  for (const LatentSize& size : request_.sizes) rows += size.rows();
  const auto options = at::TensorOptions(at::kFloat).device(runtime_.device);
  DeviceSteps steps;
  steps.x = at::empty({rows, row_width()}, options);
  steps.step = at::empty({1}, options.dtype(at::kLong));
  steps.sizes = at::tensor(sizes, at::kFloat).to(runtime_.device);
  if (captures_steps(request_, checkpoint_, runtime_))
    steps.graphs = make_launch_graphs(runtime_.device);
  return steps;
}

void BagelPainter::update(const DeviceSteps& steps, const StepKind& kind) const {
  const Tensor time = denoiser_.times().index_select(0, steps.step)[0];
  const Tensor v = guide(denoiser_.velocities_at(steps.x, time, kind.contexts), kind);
  // A tensor as the factor would be rounded to v's dtype first, a number is not: so multiply in
  // float32 and round the product, as integrate() does.
  const Tensor moved = v.to(at::kFloat) * steps.sizes.index_select(0, steps.step);
  steps.x.sub_(moved.to(v.scalar_type()));
  steps.step.add_(1);
}

std::vector<RepeatedWork> BagelPainter::plan_updates(const DeviceSteps& steps) const {
  std::vector<RepeatedWork> works;
  for (std::int64_t i = 0; i < schedule_.updates(); ++i) {
    const StepKind kind = kind_of(schedule_.times[static_cast<std::size_t>(i)]);
    const std::int64_t key = (kind.text ? 2 : 0) + (kind.image ? 1 : 0);
    if (works.empty() || works.back().key != key)
      works.push_back({key, 0, [this, &steps, kind] { update(steps, kind); }});
    ++works.back().times;
  }
  return works;
}

// The same updates, bit for bit, with all that changes from one to the next on the device. Steps
// with and without guidance are each one graph, where there are graphs.
Tensor BagelPainter::integrate_on_device(const Tensor& noise, Progress& progress) {
  if (!steps_) steps_ = make_device_steps();
  DeviceSteps& steps = *steps_;
  steps.x.copy_(noise);
  steps.step.zero_();
  synchronize(runtime_.device);  // graphs have a stream of their own
  check_interrupted();
  const std::vector<RepeatedWork> works = plan_updates(steps);
  std::int64_t done = 0;
  const auto after = [&] {
    denoiser_.count_forwards(kind_of(schedule_.times[static_cast<std::size_t>(done)]).contexts);
    progress.update(++done);
    check_interrupted();
  };
  if (steps.graphs) {
    used_graphs_ = steps.graphs->run(works, after);
  } else {
    for (const RepeatedWork& work : works) {
      for (std::int64_t i = 0; i < work.times; ++i) work.once(), after();
    }
  }
  Tensor latent = steps.x.clone();
  if (!request_.keep_graphs) steps_.reset();
  return latent;
}

bool BagelPainter::has_captured(const PaintRequest& request) const {
  const auto steps = [](const PaintRequest& r) {
    return std::tie(r.sizes, r.guidance, r.renorm_whole_batch, r.cfg_mode, r.step_graphs, r.steps,
                    r.timestep_shift);
  };
  return steps_ && used_graphs_ && !request.caches() && steps(request) == steps(request_);
}

bool BagelPainter::serves(const PaintRequest& request, const PrefilledContexts& contexts) const {
  return has_captured(request) && contexts_.laid_out_as(contexts) &&
         (contexts_.as_long_as(contexts) || lengths_on_device_);
}

void BagelPainter::take(const PrefilledContexts& contexts) {
  contexts_.copy(contexts);
  denoiser_.follow_contexts();
}

Tensor BagelPainter::paint(const Tensor& noise, Progress& progress, StepCaching caching) {
  if (runtime_.trace != nullptr) {
    trace_generation(contexts_, checkpoint_.model, request_.sizes, checkpoint_.markers, noise,
                     *runtime_.trace);
  }
  if (attention_.empty()) runtime_.paint_attention.of(AttentionRole::self).forget_served();
  RECORD_USER_SCOPE(kDenoiseScope);
  denoiser_.begin_picture(caching);
  progress.begin("denoise", schedule_.updates());
  used_graphs_ = false;
  Tensor latent = denoiser_.is_plain() ? integrate_on_device(noise, progress)
                                       : integrate_by_step(noise, progress);
  synchronize(runtime_.device);
  progress.end();
  if (attention_.empty()) {
    attention_ = runtime_.paint_attention.of(AttentionRole::self).served_by();
    lengths_on_device_ = runtime_.paint_attention.of(AttentionRole::self).reads_lengths_on_device();
  }
  return latent;
}

std::vector<Tensor> BagelPainter::decode(const Tensor& latent) const {
  const BagelConfig& config = checkpoint_.model.config;
  std::vector<Tensor> images;
  std::int64_t row = 0;
  for (std::size_t i = 0; i < request_.sizes.size(); ++i) {
    const LatentSize& size = request_.sizes[i];
    check_interrupted();
    const Tensor rows = latent.narrow(0, row, size.rows());
    const Tensor input =
        unpack_latent(rows, size.h, size.w, config.latent_patch_size, config.latent_channels);
    const Tensor image = checkpoint_.vae.decode(input, {}, checkpoint_.strips);
    if (runtime_.trace != nullptr) {
      // One picture has plain names, a batch numbers them.
      const bool one = request_.sizes.size() == 1;
      const std::string number = one ? "" : fmt::format(".{}", i);
      if (!one) runtime_.trace->record(fmt::format("result{}.latent", number), rows);
      runtime_.trace->record("vae.decode_input" + number, input);
      runtime_.trace->record("vae.decoded" + number, image);
      runtime_.trace->record(fmt::format("image{}.uint8", number), to_uint8(image));
    }
    images.push_back(image);
    row += size.rows();
  }
  return images;
}

}  // namespace diptych
