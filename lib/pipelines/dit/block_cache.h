// The step caches of a diffusion transformer: what leaves the blocks is computed in some steps and
// predicted in the others (lib/sampling/step_cache/step_cache.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "lib/pipelines/dit/job.h"
#include "lib/sampling/step_cache/step_cache.h"
#include "lib/sampling/step_cache/step_calibration.h"

namespace diptych {

// A forward of some branches, each of as many samples as there are jobs.
struct BlockCall {
  std::int64_t step = 0;
  std::int64_t first = 0;  // branch
  std::int64_t samples = 1;
  std::size_t model = 0;  // the transformer
};

class BlockCache {
 public:
  using Run = std::function<Tensor(Tensor x)>;
  // What enters the blocks -> what the first one makes of the first sample's rows with the
  // timestep, normed and modulated, which tells how much has changed (Liu et al. 2024,
  // arXiv:2411.19108, section 3.2); a fresh tensor. All samples are of one latent: there is one
  // job.
  using Modulate = std::function<Tensor(const Tensor& x)>;

  // Before a clip of as many updates; forgets the one before. Throws as StepCacheConfig::check.
  void begin(const StepCacheConfig& config, std::int64_t updates);
  // From now on every step is computed and recorded. The recorder must outlive this.
  void record(StepChangeRecorder& recorder) { recorder_ = &recorder; }
  // What leaves the blocks, [samples * rows, width]: run(x), which nobody may write to afterwards,
  // or what earlier steps let expect. Steps come in order. Another transformer begins anew. With
  // TeaCache the first call of a step decides for all of it, and waits for one number.
  Tensor rows(const BlockCall& call, Tensor x, const Modulate& modulate, const Run& run);
  std::string note() const;  // "TaylorSeer computed 9 of 20 steps"; "" without a cache

 private:
  Tensor recorded(const BlockCall& call, Tensor x, const Modulate& modulate, const Run& run);
  Tensor extrapolated(const BlockCall& call, Tensor x, const Run& run);
  Tensor with_residual(const BlockCall& call, Tensor x, const Modulate& modulate, const Run& run);
  bool decide(const BlockCall& call, const Tensor& modulated);

  StepCacheConfig config_;
  StepChangeRecorder* recorder_ = nullptr;
  std::int64_t updates_ = 0;
  std::size_t model_ = 0;
  std::vector<bool> computed_;                 // steps
  std::map<std::int64_t, TaylorSeer> series_;  // by first branch
  std::optional<TeaCacheRule> rule_;
  std::int64_t decided_ = -1;                 // the step
  Tensor modulated_;                          // of that step
  std::map<std::int64_t, Tensor> residuals_;  // by first branch, of the last computed step
};

// What a step cache keeps of all branches. `values`: of the rows that leave a branch's blocks.
std::int64_t step_cache_bytes(const DitJob& job, std::int64_t values, at::ScalarType dtype);

}  // namespace diptych
