#include "lib/models/wan_vae/tiling.h"

#include <algorithm>

#include "lib/models/wan_vae/config.h"

namespace diptych {
namespace {

// `to`'s first rows or columns (dimension `dim`) fade in over the last ones of `from`, in place.
void blend(const Tensor& from, const Tensor& to, std::int64_t dim, std::int64_t most) {
  const std::int64_t extent = std::min({from.size(dim), to.size(dim), most});
  for (std::int64_t i = 0; i < extent; ++i) {
    const double part = static_cast<double>(i) / static_cast<double>(extent);
    Tensor place = to.select(dim, i);
    place.mul_(part).add_(from.select(dim, from.size(dim) - extent + i), 1 - part);
  }
}

// The last rows or columns, for the tile behind them.
Tensor edge(const Tensor& tile, std::int64_t dim, std::int64_t most) {
  const std::int64_t extent = std::min(tile.size(dim), most);
  return tile.narrow(dim, tile.size(dim) - extent, extent).clone();
}

// One axis of the grid: in positions of the latent, and in those of the result.
struct Axis {
  std::int64_t size, tile, stride, scale, overlap;

  Axis(std::int64_t latent, std::int64_t tile_pixels, std::int64_t stride_pixels,
       const WanVaeTiles& tiles)
      : size(latent),
        tile(tile_pixels / tiles.spatial),
        stride(stride_pixels / tiles.spatial),
        scale(tiles.spatial / tiles.unit),
        overlap(tile_pixels / tiles.unit - stride_pixels / tiles.unit) {
    TORCH_CHECK(stride > 0 && tile >= stride, "[wan_vae] tiles of ", tile_pixels,
                " pixels at a stride of ", stride_pixels, ", positions of ", tiles.spatial);
  }
  std::int64_t length(std::int64_t first) const { return std::min(tile, size - first); }
  // Of the result, what no other tile writes.
  std::int64_t own(std::int64_t first) const { return std::min(stride, size - first) * scale; }
};

}  // namespace

bool WanVaeTiling::splits(const WanVaeConfig& config, std::int64_t h, std::int64_t w) const {
  return h > tile_sample_min_height / config.spatial() ||
         w > tile_sample_min_width / config.spatial();
}

Tensor wan_vae_blend_tiles(const WanVaeTiles& tiles,
                           const std::function<Tensor(const WanVaeTile& tile)>& make) {
  const WanVaeTiling& t = tiles.tiling;
  const Axis rows(tiles.h, t.tile_sample_min_height, t.tile_sample_stride_height, tiles);
  const Axis columns(tiles.w, t.tile_sample_min_width, t.tile_sample_stride_width, tiles);
  Tensor result;
  std::vector<Tensor> above;  // lower edges of the row of tiles before, by column
  for (std::int64_t y = 0; y < rows.size; y += rows.stride) {
    std::vector<Tensor> lower;
    Tensor left;
    for (std::int64_t x = 0; x < columns.size; x += columns.stride) {
      const Tensor tile = make({y, x, rows.length(y), columns.length(x)});
      if (!result.defined()) {
        result =
            at::empty({tile.size(0), tiles.h * rows.scale, tiles.w * columns.scale, tile.size(3)},
                      tile.options());
      }
      if (!above.empty()) blend(above[lower.size()], tile, 1, rows.overlap);
      if (left.defined()) blend(left, tile, 2, columns.overlap);
      lower.push_back(edge(tile, 1, rows.overlap));
      left = edge(tile, 2, columns.overlap);
      result.narrow(1, y * rows.scale, rows.own(y))
          .narrow(2, x * columns.scale, columns.own(x))
          .copy_(tile.narrow(1, 0, rows.own(y)).narrow(2, 0, columns.own(x)));
    }
    above = std::move(lower);
  }
  return result;
}

}  // namespace diptych
