#include <fmt/format.h>

#include "lib/base/interrupt.h"
#include "lib/pipelines/bagel.h"
#include "lib/pipelines/bagel_trace.h"
#include "lib/tensor/noise.h"

namespace diptych {
namespace {

// Text to image: the text is what cond reads, what text guidance leaves out, and what image
// guidance (which would leave images out) keeps.
std::vector<BranchContexts> make_branches(const BagelCheckpoint& checkpoint,
                                          const PaintRequest& request, const FlowSchedule& schedule,
                                          bool tracing) {
  BranchContexts cond{"cond", {}}, text_uncond{"text_uncond", {}};
  for (const std::string& prompt : request.prompts) {
    cond.samples.push_back({{checkpoint.text_segment(prompt)}});
    text_uncond.samples.push_back({});
  }
  BranchContexts img_uncond{"img_uncond", cond.samples};
  bool uses_text = false, uses_image = false;
  for (const float t :
       std::span(schedule.times).first(static_cast<std::size_t>(schedule.updates()))) {
    uses_text |= request.guidance.uses_text(t);
    uses_image |= request.guidance.uses_image(t);
  }
  std::vector<BranchContexts> branches = {std::move(cond)};
  // A trace names all three branches, like the official code's; an empty or equal context is free.
  if (uses_text || tracing) branches.push_back(std::move(text_uncond));
  if (uses_image || tracing) branches.push_back(std::move(img_uncond));
  return branches;
}

std::vector<std::int64_t> block_rows(std::span<const LatentSize> sizes) {
  std::vector<std::int64_t> rows;
  for (const LatentSize& size : sizes) rows.push_back(size.rows() + 2);
  return rows;
}

}  // namespace

Tensor draw_noise(const PaintRequest& request, std::int64_t row_width, std::uint64_t seed) {
  at::Generator generator = cpu_generator(seed);
  std::vector<Tensor> draws;
  for (const LatentSize& size : request.sizes)
    draws.push_back(randn({size.rows(), row_width}, generator));
  return at::cat(draws);
}

BagelPainter::BagelPainter(const BagelCheckpoint& checkpoint, PaintRequest request,
                           const Runtime& runtime)
    : checkpoint_(checkpoint),
      runtime_(runtime),
      request_(std::move(request)),
      schedule_(FlowSchedule::shifted(request_.steps, request_.timestep_shift)),
      contexts_(checkpoint.model,
                make_branches(checkpoint, request_, schedule_, runtime.trace != nullptr),
                block_rows(request_.sizes), runtime),
      denoiser_(checkpoint.model, contexts_, request_.sizes, checkpoint.markers, schedule_,
                request_.cfg_mode, runtime) {}

Tensor BagelPainter::guided_velocity(const Tensor& x, std::int64_t step) const {
  const float t = schedule_.times[static_cast<std::size_t>(step)];
  const Guidance& guidance = request_.guidance;
  // Which distinct contexts this step needs: cond always, the others while guidance acts.
  const std::int64_t text = guidance.uses_text(t) ? *contexts_.context_of("text_uncond") : 0;
  const std::int64_t image = guidance.uses_image(t) ? *contexts_.context_of("img_uncond") : 0;
  const std::vector<Tensor> v = denoiser_.velocities(x, step, std::max(text, image) + 1);
  const auto pick = [&](bool used, std::int64_t context) {
    return used ? v[static_cast<std::size_t>(context)] : Tensor();
  };
  const Tensor guided = guidance.combine(v.front(), pick(guidance.uses_text(t), text),
                                         pick(guidance.uses_image(t), image));
  if (runtime_.trace != nullptr) {
    TraceSink& trace = *runtime_.trace;
    const auto record = [&](std::string_view what, const Tensor& value) {
      trace.record(fmt::format("step{:03}.{}", step, what), value);
    };
    record("t", at::full({1}, t, at::kFloat));
    record("v_cond", v.front());
    if (guidance.uses_text(t)) record("v_text_uncond", v[static_cast<std::size_t>(text)]);
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

Tensor BagelPainter::paint(const Tensor& noise, Progress& progress) const {
  if (runtime_.trace != nullptr) {
    trace_generation(contexts_, checkpoint_.model, request_.sizes, checkpoint_.markers, noise,
                     *runtime_.trace);
  }
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
    const Tensor image = checkpoint_.vae.decode(input);
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
