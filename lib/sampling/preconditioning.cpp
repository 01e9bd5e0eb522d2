#include "lib/sampling/preconditioning.h"

namespace diptych {

Preconditioning Preconditioning::rectified_flow(float sigma) {
  TORCH_CHECK(sigma >= 0, "[rectified_flow] sigma is ", sigma);
  const float time = sigma / (sigma + 1);
  return {time, 1 - time, 1 - time, -time};
}

Tensor Preconditioning::input(const Tensor& x) const {
  return x.to(at::kFloat) * c_in;
}

Tensor Preconditioning::denoised(const Tensor& x, const Tensor& output) const {
  return x.to(at::kFloat) * c_skip + output.to(at::kFloat) * c_out;
}

Tensor frame_times(float time, float known_time, std::int64_t known, std::int64_t frames) {
  TORCH_CHECK(known >= 0 && known <= frames, "[frame_times] ", known, " of ", frames);
  Tensor times = at::full({frames}, time, at::kFloat);
  times.narrow(0, 0, known).fill_(known_time);
  return times;
}

Tensor with_known_frames(const Tensor& x, const Tensor& given, std::int64_t known) {
  if (known == 0) return x;
  const Tensor mixed = x.clone();
  mixed.narrow(2, 0, known).copy_(given.narrow(2, 0, known));
  return mixed;
}

}  // namespace diptych
