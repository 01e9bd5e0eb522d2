#include "lib/sampling/schedule.h"

#include <cmath>

#include "lib/base/error.h"

namespace diptych {

FlowSchedule FlowSchedule::shifted(std::int64_t steps, double shift) {
  constexpr std::int64_t kMostSteps = 10'000;  // a table row each; far beyond any use
  if (steps < 2) throw InputError("steps: {} makes 0 updates, expected at least 2", steps);
  if (steps > kMostSteps) throw InputError("steps: {}, expected at most {}", steps, kMostSteps);
  // ATen's own float32 linspace and arithmetic, so that every t has the official code's bits.
  const at::Tensor s = at::linspace(1, 0, steps, at::kFloat);
  const at::Tensor t = shift * s / (1 + (shift - 1) * s);
  const float* data = t.const_data_ptr<float>();
  if (const float first = data[0]; !(std::abs(first - 1) <= 1e-3F)) {
    throw InputError(Setting::of("timestep_shift"),
                     "{} is too extreme for float32: t begins at {}, expected 1", shift, first);
  }
  return {std::vector<float>(data, data + steps)};
}

Tensor FlowSchedule::step_sizes() const {
  std::vector<float> sizes;
  for (std::int64_t i = 0; i < updates(); ++i) sizes.push_back(step_size(i));
  return at::tensor(sizes, at::kFloat);
}

}  // namespace diptych
