// The velocity of a denoise step under guidance: those of the branches that act in it, combined.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "lib/pipelines/mot/contexts.h"
#include "lib/pipelines/mot/denoiser.h"
#include "lib/pipelines/mot/paint_request.h"

namespace diptych {

// How many of the distinct contexts, from the first on, the first `terms` terms of guidance need.
std::int64_t contexts_of(std::size_t terms, const Guidance& guidance,
                         const PrefilledContexts& contexts);

// Of one painter, whose parts it is made of and which it must not outlive.
class GuidedVelocity {
 public:
  GuidedVelocity(const PaintRequest& request, const PrefilledContexts& contexts,
                 const MotDenoiser& denoiser)
      : request_(request), contexts_(contexts), denoiser_(denoiser) {}
  // x float32 [rows of all pictures, row width] -> likewise; 0 in rows without noise. `trace`:
  // null: off.
  Tensor at_step(const Tensor& x, std::int64_t step, MotTrace* trace) const;
  // The same of launches alone, which a CUDA graph can hold: `step` int64 [1] on the device, with
  // `terms` terms of guidance.
  Tensor launched(const Tensor& x, const Tensor& step, std::int64_t terms) const;

 private:
  Tensor guide(const std::vector<Tensor>& v, std::size_t terms) const;
  Tensor combine(const Tensor& cond, std::span<const Tensor> branches) const;
  const PaintRequest& request_;
  const PrefilledContexts& contexts_;
  const MotDenoiser& denoiser_;
};

}  // namespace diptych
