// Guidance of the video families, which have two branches: one that reads the prompt (cond) and one
// that reads the negative prompt (uncond). All but the batch's dimension is one clip.
#pragma once

#include <cstdint>

#include "lib/base/setting.h"
#include "lib/tensor/types.h"

namespace diptych {

// v_u + scale (v_c - v_u), in the velocities' dtype.
Tensor guide(const Tensor& cond, const Tensor& uncond, double scale);

// x0_c + scale (x0_c - x0_u): Cosmos counts from the conditional branch, so its scale g is 1 + g in
// the form above (specs: cosmos.md 5).
Tensor guide_x0(const Tensor& cond, const Tensor& uncond, double scale);

// guided, pulled towards the spread of cond: phi v std(cond) / std(v) + (1 - phi) v. std: unbiased,
// over every dimension but the first (Lin et al. 2023, arXiv:2305.08891, section 3.4; FastVideo's
// guidance_rescale; specs: wan.md 7). phi = 0 returns guided as it is. Both of the same shape, at
// least 2 dimensions.
Tensor rescale_guidance(const Tensor& guided, const Tensor& cond, double phi);

// Adaptive guidance (Castillo et al. 2023, arXiv:2312.12487, LinearAG; FastVideo's
// FASTVIDEO_CFG_GATE_STEP; specs: wan.md 7.1). From a step on, the branch without the prompt is not
// computed any more. The difference between the branches stays as it was.
class GuidanceGate {
 public:
  struct Counters {
    std::int64_t fresh = 0;          // steps that computed both branches
    std::int64_t reused = 0;         // steps that computed one
    std::int64_t invalidations = 0;  // differences that were dropped as the expert changed
    bool operator==(const Counters&) const = default;
  };

  // fraction: of the steps, rounded down, that compute both branches; 1: all of them. Throws
  // InputError naming `setting` unless it is within 0 and 1.
  GuidanceGate(double fraction, std::int64_t steps, const Setting& setting);

  // Begins a step: whether it needs the branch without the prompt. `expert`: which of the model's
  // transformers runs; another one than before drops the difference. Step 0 always needs it.
  bool begin_step(std::int64_t step, std::int64_t expert);
  // The guided velocity of the step. uncond: undefined where it was not needed.
  Tensor guide(const Tensor& cond, const Tensor& uncond, double scale);
  void reset();  // begins another clip

  bool on() const { return first_reusing_step_ < steps_; }
  const Counters& counters() const { return counters_; }

 private:
  std::int64_t steps_, first_reusing_step_;
  Tensor difference_;  // cond - uncond; undefined: none is kept
  std::int64_t expert_ = -1;
  bool needs_uncond_ = true;
  Counters counters_;
};

}  // namespace diptych
