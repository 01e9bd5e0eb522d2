// The rows that BAGEL makes of a latent: one for each patch of it. Port of ByteDance-Seed/Bagel
// @056b5fd, modeling/bagel/bagel.py.
#pragma once

#include <cstdint>

#include "lib/tensor/types.h"

namespace diptych {

// [h * w, p * p * c] rows in (patch row, patch column, channel) order <-> latent [1, c, h * p, w *
// p].
Tensor pack_latent(const Tensor& latent, std::int64_t patch);
Tensor unpack_latent(const Tensor& rows, std::int64_t h, std::int64_t w, std::int64_t patch,
                     std::int64_t channels);

}  // namespace diptych
