// TaylorSeer for a diffusion transformer: what leaves the blocks is computed in some steps and
// extrapolated in the others.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "lib/pipelines/dit/job.h"
#include "lib/sampling/step_cache/step_cache.h"

namespace diptych {

class BlockSeries {
 public:
  using Run = std::function<Tensor(Tensor x)>;

  // Before a clip of as many updates; forgets the one before.
  void begin(std::int64_t updates);
  // What leaves the blocks, [rows, width]: run(x), which nobody may write to afterwards, or what
  // earlier steps let expect. Branches that share a forward are one series, of the first one's
  // number. `model`: the transformer; a series begins anew with another one.
  Tensor rows(std::int64_t step, std::int64_t branch, std::size_t model, Tensor x, const Run& run);
  std::string note() const;  // "TaylorSeer computed 9 of 20 steps"

 private:
  std::map<std::int64_t, TaylorSeer> series_;  // by branch
  std::size_t model_ = 0;
  std::vector<bool> computed_;  // steps
};

// What a step cache keeps of all branches. `values`: of the rows that leave a branch's blocks.
std::int64_t step_cache_bytes(const DitJob& job, std::int64_t values, at::ScalarType dtype);

}  // namespace diptych
