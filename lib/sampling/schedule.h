// Timesteps of flow matching: t = 1 is noise, t = 0 is the picture.
#pragma once

#include <cstdint>
#include <vector>

#include "lib/tensor/types.h"

namespace diptych {

struct FlowSchedule {
  std::vector<float> times;  // [points], from 1 to 0, in float32 as the official code computes them

  // s = linspace(1, 0, points); t = shift * s / (1 + (shift - 1) * s). They make points - 1
  // updates: the velocity at the last, t = 0, is not needed (ByteDance-Seed/Bagel, bagel.py,
  // generate_image). In float32 some shifts below 1 begin a little above 1, where an interval that
  // ends at 1 has no guidance, there as here. One point makes no update: whether that is a request
  // is the family's to say. Throws InputError for a shift whose float32 begins further than 0.001
  // from 1.
  static FlowSchedule shifted(std::int64_t points, double shift);
  std::int64_t updates() const { return static_cast<std::int64_t>(times.size()) - 1; }
  float step_size(std::int64_t i) const {  // t_i - t_(i+1), positive
    return times[static_cast<std::size_t>(i)] - times[static_cast<std::size_t>(i) + 1];
  }
  Tensor step_sizes() const;  // of every update, float32 [updates] on the CPU
};

}  // namespace diptych
