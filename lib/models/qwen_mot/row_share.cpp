#include "lib/models/qwen_mot/row_share.h"

#include <algorithm>
#include <numeric>

#include <ATen/ATen.h>

#include "lib/runtime/row_share.h"

namespace diptych {

MotRowShare::MotRowShare(Ranks& ranks, std::span<const std::int64_t> rows, at::Device device)
    : ranks_(ranks) {
  const RowShare share = {&ranks};
  for (const std::int64_t count : rows) own_rows_.push_back(share.own(count));
  const std::int64_t of_rank = std::accumulate(own_rows_.begin(), own_rows_.end(), std::int64_t{0});
  std::vector<std::int64_t> index, place;
  std::int64_t first = 0, own_first = 0;  // of the sample
  for (std::size_t s = 0; s < rows.size(); ++s) {
    const std::int64_t own = own_rows_[s];
    for (std::int64_t i = 0; i < own; ++i)
      index.push_back(first + std::min(share.part() * own + i, rows[s] - 1));
    for (std::int64_t row = 0; row < rows[s]; ++row)
      place.push_back(row / own * of_rank + own_first + row % own);
    first += rows[s];
    own_first += own;
  }
  index_ = at::tensor(index, at::kLong).to(device);
  place_ = at::tensor(place, at::kLong).to(device);
}

Tensor MotRowShare::in_order(const Tensor& parts) const {
  return parts.flatten(0, 1).index_select(0, place_);
}

Tensor MotRowShare::join(const Tensor& own) const {
  return in_order(gather_parts(ranks_, own.contiguous()));
}

void MotRowShare::exchange(const Tensor& keys, const Tensor& values, const Tensor& own_slots,
                           const Tensor& all_slots) const {
  const Tensor own =
      at::stack({keys.index_select(0, own_slots), values.index_select(0, own_slots)});
  const Tensor all = gather_parts(ranks_, own);  // [ranks, 2, own(), kv_heads, head_dim]
  keys.index_copy_(0, all_slots, in_order(all.select(1, 0)));
  values.index_copy_(0, all_slots, in_order(all.select(1, 1)));
}

}  // namespace diptych
