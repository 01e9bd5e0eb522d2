// Choosing tokens, one body for the CPU and CUDA. Expected ids: a loop over sorted lists in Python,
// race draws from torch 2.11's CPU generator.
#pragma once

#include <c10/core/Device.h>

#include "lib/sampling/token_sampler.h"

namespace diptych::token_cases {

// Eight logits against a race written out: every kind of sampling.
void check_choices(at::Device device);
// Twelve tokens of 640 logits with a generator's race.
void check_sequences(at::Device device);
// NaN and infinities give kNoToken, a single -infinity does not.
void check_not_finite(at::Device device);

Tensor sequence_logits(std::int64_t step);  // float32 [640]: ((37 i) mod 101) / 20, rolled

}  // namespace diptych::token_cases
