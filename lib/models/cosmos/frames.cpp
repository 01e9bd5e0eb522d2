#include "lib/models/cosmos/frames.h"

#include <algorithm>

namespace diptych {

std::int64_t cosmos_known_frames(std::int64_t given, std::int64_t frames) {
  constexpr std::int64_t kTemporal = 4;
  TORCH_CHECK(given >= 1 && frames >= 1, "[cosmos] ", given, " frames given of ", frames);
  return (std::min(given, frames) - 1) / kTemporal + 1;
}

Tensor cosmos_frames_to_uint8(const Tensor& frames) {
  TORCH_CHECK(frames.dim() == 4 && frames.size(0) == 3, "[cosmos] frames are ", frames.sizes());
  const Tensor unit = (frames.to(at::kFloat) * 0.5 + 0.5).clamp_(0, 1);
  return unit.mul_(255).to(at::kByte).permute({1, 2, 3, 0}).contiguous();
}

}  // namespace diptych
