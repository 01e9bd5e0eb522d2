// Noise levels of the samplers of video models, as their front ends compute them: sigma = 1 is
// noise and 0 is the clip, but for Cosmos, where sigma counts from 80. One step leads from a level
// to the next. The schedule of pictures is in schedule.h.
#pragma once

#include <cstdint>
#include <vector>

#include "lib/base/choices.h"

namespace diptych {

struct FlowTable {
  std::vector<float> sigmas;     // [steps + 1], falling; the last is 0, in euler_karras repeated
  std::vector<float> timesteps;  // [steps], what the scheduler calls t: 1000 * sigma. UniPC's are
                                 // truncated to whole numbers, and the network sees these
  std::int64_t steps() const { return static_cast<std::int64_t>(timesteps.size()); }
};

// `shift` acts on every table but euler_karras, which has none. Computed in the precision of each
// front end (float64, float32, or float32 end points of a float64 line), so that levels have its
// bits: specs: wan.md 6, cosmos.md 4. Throws InputError naming --timestep-shift unless shift is
// above 0 and leaves levels that fall from step to step in float32 (for UniPC between 1 and 0).
// steps: 1 and more.
FlowTable make_flow_table(FlowSampler sampler, std::int64_t steps, double shift);

bool is_unipc(FlowSampler sampler);

// Preconditioning (Karras et al. 2022, arXiv:2206.00364, section 5) of a network that predicts a
// flow: at the level sigma it sees t = sigma / (sigma + 1), in float32, and its input is x * c_in;
// x0 = x * c_skip + c_out * output (specs: cosmos.md 4).
struct EdmPreconditioning {
  float t, c_in, c_skip, c_out;
  static EdmPreconditioning of(float sigma);
};

}  // namespace diptych
