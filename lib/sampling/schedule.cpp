#include "lib/sampling/schedule.h"

#include <cmath>

#include <c10/util/Exception.h>

#include "lib/base/error.h"

namespace diptych {

FlowSchedule FlowSchedule::shifted(std::int64_t points, double shift) {
  TORCH_CHECK(points >= 1, "[schedule] ", points, " points");
  // ATen's own float32 linspace and arithmetic, so that every t has the official code's bits.
  const at::Tensor s = at::linspace(1, 0, points, at::kFloat);
  const at::Tensor t = shift * s / (1 + (shift - 1) * s);
  const float* data = t.const_data_ptr<float>();
  if (const float first = data[0]; !(std::abs(first - 1) <= 1e-3F)) {
    throw InputError(Setting::of("timestep_shift"),
                     "{} is too extreme for float32: t begins at {}, expected 1", shift, first);
  }
  return {std::vector<float>(data, data + points)};
}

Tensor FlowSchedule::step_sizes() const {
  std::vector<float> sizes;
  for (std::int64_t i = 0; i < updates(); ++i) sizes.push_back(step_size(i));
  return at::tensor(sizes, at::kFloat);
}

}  // namespace diptych
