#include "lib/models/wan_vae/band.h"

#include <algorithm>
#include <vector>

#include <ATen/ATen.h>

namespace diptych {

bool WanVaeBand::divides(const Ranks* ranks, std::int64_t rows) {
  if (ranks == nullptr) return false;
  const auto size = static_cast<std::int64_t>(ranks->group(RankAxis::request).size);
  return size > 1 && rows >= size;
}

WanVaeBand::WanVaeBand(Ranks& ranks, std::int64_t rows) : ranks_(&ranks), rows_(rows) {
  TORCH_CHECK(divides(&ranks, rows), "[wan_vae] ", rows, " latent rows among ", size(), " ranks");
}

std::int64_t WanVaeBand::index() const {
  return static_cast<std::int64_t>(ranks_->group(RankAxis::request).index);
}

std::int64_t WanVaeBand::size() const {
  return static_cast<std::int64_t>(ranks_->group(RankAxis::request).size);
}

std::int64_t WanVaeBand::first_of(std::int64_t rank) const {
  return rank * (rows_ / size()) + std::min(rank, rows_ % size());
}

std::int64_t WanVaeBand::count_of(std::int64_t rank) const {
  return first_of(rank + 1) - first_of(rank);
}

Tensor WanVaeBand::cut(const Tensor& all) const {
  const std::int64_t scale = all.size(1) / rows_;
  return all.narrow(1, scale * first(), scale * count()).contiguous();
}

void WanVaeBand::fill_halo(const Tensor& frames) const {
  const std::int64_t last = frames.size(1) - 1;
  const Tensor edges = at::stack({frames.select(1, 1), frames.select(1, last - 1)});
  const Tensor halo = ranks_->exchange(RankAxis::request, edges);
  frames.select(1, 0).copy_(halo[0]);
  frames.select(1, last).copy_(halo[1]);
}

Tensor WanVaeBand::join(const Tensor& own) const {
  const std::int64_t scale = own.size(1) / count();
  // Parts of one size: bands with a row less are filled up.
  const std::int64_t missing = scale * (count_of(0) - count());
  const Tensor part = missing == 0 ? own : at::constant_pad_nd(own, {0, 0, 0, 0, 0, missing});
  const Tensor parts = ranks_->all_gather(RankAxis::request, part);  // [ranks, n, h, w, c]
  std::vector<Tensor> bands;
  for (std::int64_t rank = 0; rank < size(); ++rank)
    bands.push_back(parts[rank].narrow(1, 0, scale * count_of(rank)));
  return at::cat(bands, 1);
}

}  // namespace diptych
