#include "lib/models/bagel/latent_rows.h"

namespace diptych {

Tensor pack_latent(const Tensor& latent, std::int64_t patch) {
  const std::int64_t channels = latent.size(1), h = latent.size(2) / patch,
                     w = latent.size(3) / patch;
  const Tensor grid = latent.reshape({channels, h, patch, w, patch});
  return grid.permute({1, 3, 2, 4, 0}).reshape({h * w, patch * patch * channels});
}

Tensor unpack_latent(const Tensor& rows, std::int64_t h, std::int64_t w, std::int64_t patch,
                     std::int64_t channels) {
  const Tensor grid = rows.reshape({h, w, patch, patch, channels});
  return grid.permute({4, 0, 2, 1, 3}).reshape({1, channels, h * patch, w * patch});
}

}  // namespace diptych
