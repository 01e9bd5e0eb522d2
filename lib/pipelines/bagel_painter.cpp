#include "lib/pipelines/bagel_painter.h"

#include <ATen/record_function.h>
#include <fmt/format.h>

#include "lib/base/interrupt.h"
#include "lib/pipelines/bagel_trace.h"
#include "lib/pipelines/pipeline.h"

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

Tensor BagelPainter::guided_velocity(const Tensor& x, std::int64_t step) const {
  const float t = schedule_.times[static_cast<std::size_t>(step)];
  const Guidance& guidance = request_.guidance;
  // Cond always, the others while guidance acts.
  const std::vector<Tensor> v = denoiser_.velocities(x, step, contexts_at(t, guidance, contexts_));
  const auto pick = [&](bool used, std::string_view branch) {
    return used ? v[static_cast<std::size_t>(*contexts_.context_of(branch))] : Tensor();
  };
  const Tensor guided = combine(v.front(), pick(guidance.uses_text(t), "text_uncond"),
                                pick(guidance.uses_image(t), "img_uncond"));
  if (runtime_.trace != nullptr) {
    TraceSink& trace = *runtime_.trace;
    const auto record = [&](std::string_view what, const Tensor& value) {
      trace.record(fmt::format("step{:03}.{}", step, what), value);
    };
    record("t", at::full({1}, t, at::kFloat));
    record("v_cond", v.front());
    if (guidance.uses_text(t)) record("v_text_uncond", pick(true, "text_uncond"));
    // The official code runs this branch whenever the image scale is above 1, used or not; where
    // its context is cond's, its velocity is too.
    if (guidance.active(t) && guidance.image_scale > 1 &&
        *contexts_.context_of("img_uncond") < static_cast<std::int64_t>(v.size())) {
      record("v_img_uncond", v[static_cast<std::size_t>(*contexts_.context_of("img_uncond"))]);
    }
    record("v_guided", guided);
  }
  return guided;
}

Tensor BagelPainter::paint(const Tensor& noise, Progress& progress, StepCaching caching) const {
  if (runtime_.trace != nullptr) {
    trace_generation(contexts_, checkpoint_.model, request_.sizes, checkpoint_.markers, noise,
                     *runtime_.trace);
  }
  RECORD_USER_SCOPE(kDenoiseScope);
  denoiser_.begin_picture(caching);
  progress.begin("denoise", schedule_.updates());
  const auto velocity = [&](const Tensor& x, std::int64_t step) {
    check_interrupted();
    return guided_velocity(x, step);
  };
  const auto after = [&](const Tensor& x, std::int64_t step) {
    if (runtime_.trace != nullptr) runtime_.trace->record(fmt::format("step{:03}.latent", step), x);
    progress.update(step + 1);
  };
  Tensor latent = integrate(schedule_, noise.to(runtime_.device), velocity, after);
  synchronize(runtime_.device);
  progress.end();
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
