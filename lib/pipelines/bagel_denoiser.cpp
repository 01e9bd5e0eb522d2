#include "lib/pipelines/bagel_denoiser.h"

#include <fmt/format.h>

#include "lib/base/error.h"
#include "lib/pipelines/bagel_trace.h"

namespace diptych {

CfgMode parse_cfg_mode(std::string_view name) {
  if (name == "batched") return CfgMode::batched;
  if (name == "sequential") return CfgMode::sequential;
  throw InputError("cfg_mode: found '{}', expected batched or sequential", name);
}

BagelDenoiser::BagelDenoiser(const Bagel& model, const PrefilledContexts& contexts,
                             std::span<const LatentSize> sizes, ImageMarkers markers,
                             const FlowSchedule& schedule, CfgMode mode, const Runtime& runtime)
    : model_(model),
      contexts_(contexts),
      runtime_(runtime),
      sizes_(sizes.begin(), sizes.end()),
      mode_(mode) {
  std::vector<Tensor> position_ids;
  for (const LatentSize& size : sizes_) {
    position_ids.push_back(model.latent_position_ids(size.h, size.w));
    rows_ += size.rows();
  }
  positions_ = model.latent_pos_embed.index_select(0, at::cat(position_ids).to(runtime.device));
  times_ = model.embed_timesteps(
      std::span(schedule.times).first(static_cast<std::size_t>(schedule.updates())));
  const Tensor ids = at::tensor({markers.start, markers.end}, at::kLong);
  markers_ = model.language_model.embed(ids.repeat({contexts.samples()}).to(runtime.device));
  for (std::int64_t i = 0; i < contexts.distinct(); ++i) {
    if (mode == CfgMode::batched) batched_.push_back(plan(0, i + 1));
    if (mode == CfgMode::sequential) single_.push_back(plan(i, 1));
  }
}

MotPlan BagelDenoiser::plan(std::int64_t first, std::int64_t count) const {
  std::vector<MotSample> rows;
  for (std::int64_t c = first; c < first + count; ++c) {
    for (std::int64_t s = 0; s < contexts_.samples(); ++s) {
      const BagelContext& context = contexts_.context(c, s);
      rows.push_back(
          {context.length(), context.position(), sizes_[static_cast<std::size_t>(s)].rows(), 2});
    }
  }
  const auto options = at::TensorOptions().device(runtime_.device).dtype(runtime_.dtype);
  return plan_image_block(rows, contexts_.cache_row(first, 0), contexts_.cache(), model_.config.llm,
                          options);
}

std::vector<Tensor> BagelDenoiser::velocities(const Tensor& x, std::int64_t step,
                                              std::int64_t count) const {
  const Tensor latents = model_.embed_latents(x, times_[step], positions_);
  if (runtime_.trace != nullptr) {
    trace_step_inputs(*runtime_.trace, step, times_[step],
                      at::linear(x.to(latents.dtype()), model_.vae2llm, model_.vae2llm_bias));
  }
  forwards_ += count;
  if (mode_ == CfgMode::batched) {
    return run(batched_[static_cast<std::size_t>(count - 1)], latents, step, 0, count);
  }
  std::vector<Tensor> velocities;
  for (std::int64_t c = 0; c < count; ++c) {
    velocities.push_back(run(single_[static_cast<std::size_t>(c)], latents, step, c, 1).front());
  }
  return velocities;
}

std::vector<Tensor> BagelDenoiser::run(const MotPlan& plan, const Tensor& latents,
                                       std::int64_t step, std::int64_t first,
                                       std::int64_t count) const {
  // The backbone works in place, so every branch gets rows of its own.
  MotRows rows{latents.repeat({count, 1}), markers_.repeat({count, 1})};
  MotObserver observer;
  if (runtime_.trace != nullptr) {
    observer = trace_step_observer(contexts_, sizes_, step, first, count, runtime_);
    observer("embeds", rows);
  }
  const MotRows out =
      model_.language_model.forward(plan, std::move(rows), contexts_.cache(),
                                    *runtime_.paint_attention, runtime_.kernels, observer);
  return model_.velocity(out.gen).split(rows_);
}

}  // namespace diptych
