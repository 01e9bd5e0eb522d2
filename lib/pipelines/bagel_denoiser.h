// The velocities of BAGEL's guidance branches at one timestep: all in one packed call, or one call
// a branch. Everything a step needs is laid out once, before the loop.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "lib/models/bagel/bagel.h"
#include "lib/pipelines/bagel_context.h"
#include "lib/runtime/runtime.h"
#include "lib/sampling/flow_schedule.h"

namespace diptych {

enum class CfgMode { batched, sequential };
CfgMode parse_cfg_mode(std::string_view name);  // throws InputError for others

class BagelDenoiser {
 public:
  BagelDenoiser(const Bagel& model, const PrefilledContexts& contexts,
                std::span<const LatentSize> sizes, ImageMarkers markers,
                const FlowSchedule& schedule, CfgMode mode, const Runtime& runtime);

  // x float32 [rows of all samples, 64] -> the velocity of each of the first `count` distinct
  // contexts, each [rows of all samples, 64] in the model's dtype.
  std::vector<Tensor> velocities(const Tensor& x, std::int64_t step, std::int64_t count) const;
  std::int64_t forwards() const { return forwards_; }  // branch forwards of the backbone so far

 private:
  MotPlan plan(std::int64_t first, std::int64_t count) const;
  std::vector<Tensor> run(const MotPlan& plan, const Tensor& latents, std::int64_t step,
                          std::int64_t first, std::int64_t count) const;

  const Bagel& model_;
  const PrefilledContexts& contexts_;
  const Runtime& runtime_;
  std::vector<LatentSize> sizes_;
  std::int64_t rows_ = 0;  // latent rows of all samples
  CfgMode mode_;
  std::vector<MotPlan> batched_;  // [i]: the first i + 1 contexts together
  std::vector<MotPlan> single_;   // [i]: context i alone
  Tensor times_;                  // [updates, hidden], embedded
  Tensor positions_;              // [rows, hidden]
  Tensor markers_;                // [2 * samples, hidden]: start and end marker of each sample
  mutable std::int64_t forwards_ = 0;
};

}  // namespace diptych
