// The velocities of guidance branches on a MoT backbone at one timestep: all in one packed call, or
// one call a branch, or, with a step cache, predicted from earlier steps. Everything a step needs
// is laid out once, before the loop.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "lib/base/choices.h"
#include "lib/pipelines/mot/contexts.h"
#include "lib/pipelines/mot/trace.h"
#include "lib/runtime/kernel_work.h"
#include "lib/runtime/runtime.h"
#include "lib/sampling/schedule.h"
#include "lib/sampling/step_cache/step_cache.h"

namespace diptych {

// Whether the step cache that was asked for is used.
enum class StepCaching { on, off };

// Called for every branch forward that is computed: the latent rows that enter the first layer and
// those that leave the last, before the final norm, both [rows of all samples, hidden]. What a step
// cache is calibrated with (StepChangeRecorder).
using StepObserver = std::function<void(std::int64_t step, std::int64_t context,
                                        const Tensor& input, const Tensor& output)>;

// What is denoised.
struct DenoisedRows {
  std::span<const LatentSize> sizes;  // of every sample
  // So many rows of each sample, from the first on, are given without noise and stay as they are:
  // their timestep is 0. Empty: none of any sample.
  std::span<const std::int64_t> clean_rows = {};
};

class MotDenoiser {
 public:
  // Throws as StepCacheConfig::check.
  MotDenoiser(const MotModel& model, const PrefilledContexts& contexts, const DenoisedRows& rows,
              const FlowSchedule& schedule, CfgMode mode, const Runtime& runtime,
              const StepCacheConfig& cache = {});

  // To be called when other contexts, laid out as the former, have been copied to where those were:
  // what was laid out follows them, in place.
  void follow_contexts();
  // To be called when weights have been read whose values were undefined before: what all steps
  // read of them is computed again, in place.
  void follow_weights();
  // Forgets what the step cache keeps of the picture before; without one `caching` means nothing.
  // `trace`: of this picture, null: off. Needed before each picture with either.
  void begin_picture(StepCaching caching = StepCaching::on, MotTrace* trace = nullptr) {
    trace_ = trace;
    if (cache_) restart_cache(caching);
  }
  // x float32 [rows of all samples, width] -> the velocity of each of the first `count` distinct
  // contexts, each [rows of all samples, width] in the model's dtype. With a cache the steps of a
  // picture come in order; TeaCache then waits for the device once a step.
  std::vector<Tensor> velocities(const Tensor& x, std::int64_t step, std::int64_t count) const;
  // The same at a timestep whose embedding is given, [hidden]: without trace, observer and step
  // cache, and so that it can be captured in a CUDA graph. count_forwards() is the caller's.
  std::vector<Tensor> velocities_at(const Tensor& x, const Tensor& time, std::int64_t count) const;
  // What launches the products of such a step and nothing else (MotBackbone::products): to be
  // called behind a velocities_at() of the same `count`, as often as needed, from now on until the
  // denoiser goes.
  std::function<void()> products_at(const Tensor& x, const Tensor& time, std::int64_t count) const;
  // What the layers have to do in it (mot_work).
  std::vector<KernelWork> work_of(std::int64_t count) const;
  // Whether velocities_at() does all that velocities() would.
  bool is_plain() const;
  const Tensor& times() const { return times_; }  // [updates, hidden], embedded
  // A guided velocity with zeros in the rows that stay as they are.
  Tensor still(Tensor velocity) const;
  void count_forwards(std::int64_t count) const { forwards_ += count; }
  std::int64_t forwards() const { return forwards_; }  // branch forwards computed so far
  void observe(StepObserver observer) { observer_ = std::move(observer); }  // empty: off

 private:
  using Range = std::pair<std::int64_t, std::int64_t>;  // contexts: first, count

  void restart_cache(StepCaching caching);
  MotPlan plan(Range range) const;
  std::vector<Range> calls_of(std::int64_t count) const;
  Tensor embed(const Tensor& x, const Tensor& time) const;
  Tensor packed(Range range, const Tensor& latents) const;
  std::shared_ptr<const MotRowShare> share_among(std::int64_t contexts) const;
  Tensor own(const Tensor& all) const;
  Tensor join(const Tensor& own) const;
  std::int64_t own_rows() const { return share_ ? share_->own() : rows_; }
  // `step`: for trace and observer; none where there are neither.
  std::vector<Tensor> compute(Range range, const Tensor& latents,
                              std::optional<std::int64_t> step) const;
  Tensor predict(std::int64_t context, const Tensor& latents, std::int64_t step) const;
  bool uses_cache() const { return cache_ && caching_ == StepCaching::on; }
  bool trace_wants_rows() const;
  MotRows rows_of(const Tensor& all) const;
  Tensor cache_input(const Tensor& latents) const;
  void trace_prediction(std::int64_t context, const Tensor& latents, const Tensor& layers,
                        std::int64_t step) const;

  MotModel model_;
  const PrefilledContexts& contexts_;
  const Runtime& runtime_;
  std::vector<LatentSize> sizes_;
  std::vector<float> timesteps_;              // [updates]
  std::int64_t rows_ = 0;                     // latent rows of all samples
  std::shared_ptr<const MotRowShare> share_;  // of these rows; null: this process has them all
  CfgMode mode_;
  std::map<Range, MotPlan> plans_;  // of every range that a step may compute together
  Tensor times_;                    // [updates, hidden], embedded
  Tensor positions_;                // [rows, hidden]
  Tensor is_clean_;                 // bool [rows, 1]; undefined: no row is
  Tensor clean_time_;               // [hidden], the embedded timestep of those
  Tensor markers_;                  // [2 * samples, hidden]: start and end marker of each sample
  StepObserver observer_;
  mutable std::optional<StepCache> cache_;
  StepCaching caching_ = StepCaching::on;  // of this picture
  MotTrace* trace_ = nullptr;              // likewise
  // A trace shows predicted steps layer by layer, as the official code computes them: the cache
  // then keeps every layer's rows, markers included, instead of the last layer's latent rows.
  bool keeps_layers_ = false;
  mutable std::int64_t forwards_ = 0;
};

}  // namespace diptych
