#include "lib/models/qwen_mot/row_share.h"

#include <algorithm>
#include <numeric>

#include <ATen/ATen.h>

#include "lib/runtime/row_share.h"

namespace diptych {
namespace {

Tensor table(const std::vector<std::int64_t>& numbers, at::Device device) {
  return at::tensor(numbers, at::kLong).to(device);
}

std::int64_t divide_up(std::int64_t whole, std::int64_t parts) {
  return (whole + parts - 1) / parts;
}

// Undefined where it changes nothing.
Tensor order_of(const std::vector<std::int64_t>& numbers, std::int64_t count, at::Device device) {
  std::vector<std::int64_t> same(static_cast<std::size_t>(count));
  std::iota(same.begin(), same.end(), std::int64_t{0});
  return numbers == same ? Tensor() : table(numbers, device);
}

Tensor in_order_of(const Tensor& rows, std::int64_t dim, const Tensor& order) {
  return order.defined() ? rows.index_select(dim, order) : rows;
}

}  // namespace

MotRowShare::MotRowShare(Ranks& ranks, std::span<const std::int64_t> rows, const MotHeads& heads,
                         at::Device device)
    : ranks_(ranks), ulysses_(static_cast<std::int64_t>(ranks.group(RankAxis::ulysses).size)) {
  const RowShare share = {&ranks};
  for (const std::int64_t count : rows) own_rows_.push_back(share.own(count));
  const std::int64_t of_rank = std::accumulate(own_rows_.begin(), own_rows_.end(), std::int64_t{0});
  std::vector<std::int64_t> index, place, by_sample;
  std::int64_t first = 0, own_first = 0;  // of the sample
  for (std::size_t s = 0; s < rows.size(); ++s) {
    const std::int64_t own = own_rows_[s];
    for (std::int64_t i = 0; i < own; ++i)
      index.push_back(first + std::min(share.part() * own + i, rows[s] - 1));
    for (std::int64_t row = 0; row < rows[s]; ++row)
      place.push_back(row / own * of_rank + own_first + row % own);
    for (std::int64_t rank = 0; rank < ulysses_; ++rank) {
      for (std::int64_t i = 0; i < own; ++i) by_sample.push_back(rank * of_rank + own_first + i);
    }
    first += rows[s];
    own_first += own;
  }
  index_ = table(index, device);
  place_ = table(place, device);
  if (!by_heads()) return;
  by_sample_ = order_of(by_sample, ulysses_ * of_rank, device);
  if (by_sample_.defined()) by_rank_ = at::argsort(by_sample_);
  divide_heads(heads, device);
}

// The key and query heads of a rank are neighbours. The last ranks begin earlier if heads do not
// divide, and repeat heads of another rank.
MotRowShare::HeadRange MotRowShare::head_range(std::int64_t rank) const {
  const std::int64_t of_key = all_.heads / all_.kv_heads;
  const std::int64_t first_key =
      std::min(rank / ranks_of_key_ * each_.kv_heads, all_.kv_heads - each_.kv_heads);
  const std::int64_t within =
      std::min(rank % ranks_of_key_ * each_.heads, each_.kv_heads * of_key - each_.heads);
  return {first_key, first_key * of_key + within};
}

void MotRowShare::divide_heads(const MotHeads& heads, at::Device device) {
  all_ = heads;
  ranks_of_key_ = std::max<std::int64_t>(ulysses_ / heads.kv_heads, 1);
  each_.kv_heads = divide_up(heads.kv_heads, ulysses_);
  each_.heads = divide_up(each_.kv_heads * (heads.heads / heads.kv_heads), ranks_of_key_);
  std::vector<std::int64_t> keys, queries, places;
  for (std::int64_t rank = 0; rank < ulysses_; ++rank) {
    const HeadRange range = head_range(rank);
    for (std::int64_t i = 0; i < each_.kv_heads; ++i) keys.push_back(range.first_key + i);
    for (std::int64_t i = 0; i < each_.heads; ++i) queries.push_back(range.first_query + i);
  }
  for (std::int64_t head = 0; head < heads.heads; ++head)
    places.push_back(std::ranges::find(queries, head) - queries.begin());
  sent_keys_ = order_of(keys, heads.kv_heads, device);
  sent_queries_ = order_of(queries, heads.heads, device);
  if (sent_queries_.defined()) head_place_ = table(places, device);
}

std::vector<std::int64_t> MotRowShare::attending_rows() const {
  std::vector<std::int64_t> rows = own_rows_;
  for (std::int64_t& count : rows) count *= ulysses_;
  return rows;
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
  const auto put = [&](const Tensor& into, const Tensor& parts) {
    into.index_copy_(0, all_slots, in_order(parts));
  };
  if (!by_heads()) {
    const Tensor all = gather_parts(ranks_, own);  // [ranks, 2, own(), kv_heads, head_dim]
    put(keys, all.select(1, 0));
    put(values, all.select(1, 1));
    return;
  }
  const Tensor sent = in_order_of(own, 2, sent_keys_)
                          .unflatten(2, {ulysses_, each_.kv_heads})
                          .permute({2, 0, 1, 3, 4})
                          .contiguous();
  Tensor all = ranks_.all_to_all(RankAxis::ulysses, sent);
  if (ranks_.group(RankAxis::ring).size > 1)
    all = ranks_.all_gather(RankAxis::ring, all).flatten(0, 1);
  put(own_key_heads(keys), all.select(1, 0));
  put(own_key_heads(values), all.select(1, 1));
}

Tensor MotRowShare::own_key_heads(const Tensor& keys) const {
  const auto rank = static_cast<std::int64_t>(ranks_.group(RankAxis::ulysses).index);
  return keys.narrow(-2, head_range(rank).first_key, each_.kv_heads);
}

Tensor MotRowShare::own_query_heads(const Tensor& q) const {
  const auto rank = static_cast<std::int64_t>(ranks_.group(RankAxis::ulysses).index);
  return q.narrow(1, head_range(rank).first_query, each_.heads);
}

Tensor MotRowShare::rows_for_heads(const Tensor& q) const {
  const Tensor sent = in_order_of(q, 1, sent_queries_)
                          .unflatten(1, {ulysses_, each_.heads})
                          .transpose(0, 1)
                          .contiguous();
  return in_order_of(ranks_.all_to_all(RankAxis::ulysses, sent).flatten(0, 1), 0, by_sample_);
}

Tensor MotRowShare::in_order_of_heads(const Tensor& parts) const {
  return in_order_of(parts.transpose(0, 1).flatten(1, 2), 1, head_place_);
}

Tensor MotRowShare::heads_for_rows(const Tensor& attended) const {
  const Tensor sent = in_order_of(attended, 0, by_rank_).unflatten(0, {ulysses_, own()});
  return in_order_of_heads(ranks_.all_to_all(RankAxis::ulysses, sent.contiguous()));
}

Tensor MotRowShare::join_heads(const Tensor& attended) const {
  return in_order_of_heads(ranks_.all_gather(RankAxis::ulysses, attended.contiguous()));
}

}  // namespace diptych
