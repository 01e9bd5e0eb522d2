#include "lib/runtime/row_share.h"

#include <algorithm>

#include <ATen/ATen.h>

namespace diptych {
namespace {

std::int64_t size_of(const Ranks* ranks, RankAxis axis) {
  return ranks == nullptr ? 1 : static_cast<std::int64_t>(ranks->group(axis).size);
}

std::int64_t index_in(const Ranks* ranks, RankAxis axis) {
  return ranks == nullptr ? 0 : static_cast<std::int64_t>(ranks->group(axis).index);
}

// qkv [samples, own rows, 3, heads, head_dim], heads a multiple of the ranks -> [samples, ranks *
// own rows, 3, heads / ranks, head_dim].
Tensor rows_for_heads(Ranks& ranks, const Tensor& qkv, std::int64_t each) {
  const Tensor sent = qkv.unflatten(3, {-1, each}).permute({3, 0, 1, 2, 4, 5}).contiguous();
  return ranks.all_to_all(RankAxis::ulysses, sent).permute({1, 0, 2, 3, 4, 5}).flatten(1, 2);
}

// [samples, ranks * own rows, heads, head_dim] -> [samples, own rows, ranks * heads, head_dim].
Tensor heads_for_rows(Ranks& ranks, const Tensor& out) {
  const auto size = static_cast<std::int64_t>(ranks.group(RankAxis::ulysses).size);
  const Tensor sent = out.unflatten(1, {size, -1}).permute({1, 0, 2, 3, 4}).contiguous();
  return ranks.all_to_all(RankAxis::ulysses, sent).permute({1, 2, 0, 3, 4}).flatten(2, 3);
}

// [samples, rows, ...] of each rank of the ring -> [samples, ranks * rows, ...].
Tensor rows_of_ring(Ranks& ranks, const Tensor& part) {
  return ranks.all_gather(RankAxis::ring, part.contiguous()).transpose(0, 1).flatten(1, 2);
}

}  // namespace

std::int64_t RowShare::parts() const {
  return size_of(ranks, RankAxis::ring) * size_of(ranks, RankAxis::ulysses);
}

std::int64_t RowShare::part() const {
  return index_in(ranks, RankAxis::ring) * size_of(ranks, RankAxis::ulysses) +
         index_in(ranks, RankAxis::ulysses);
}

std::int64_t RowShare::own(std::int64_t rows) const {
  return (rows + parts() - 1) / parts();
}

Tensor RowShare::cut(const Tensor& all, std::int64_t dim) const {
  if (!divides()) return all;
  const std::int64_t rows = all.size(dim), count = own(rows);
  const std::int64_t first = std::min(part() * count, rows);
  const std::int64_t there = std::min(count, rows - first);
  const Tensor own_part = all.narrow(dim, first, there);
  if (there == count) return own_part.contiguous();
  std::vector<std::int64_t> sizes = all.sizes().vec();
  sizes[static_cast<std::size_t>(dim)] = count - there;
  return at::cat({own_part, at::zeros(sizes, all.options())}, dim);
}

Tensor RowShare::join(const Tensor& own, std::int64_t rows) const {
  if (!divides()) return own;
  return gather_parts(*ranks, own.contiguous()).transpose(0, 1).flatten(1, 2).narrow(1, 0, rows);
}

AttentionLengths RowShare::lengths(std::int64_t samples, std::int64_t rows,
                                   at::Device device) const {
  const auto count = static_cast<std::size_t>(samples);
  const std::int64_t queries = own(rows) * size_of(ranks, RankAxis::ulysses);
  return AttentionLengths::make(std::vector(count, queries), std::vector(count, rows), padded(rows),
                                device);
}

Tensor gather_parts(Ranks& ranks, const Tensor& part) {
  Tensor all = part.unsqueeze(0);
  for (const RankAxis axis : {RankAxis::ulysses, RankAxis::ring}) {
    if (ranks.group(axis).size > 1) all = ranks.all_gather(axis, all).flatten(0, 1);
  }
  return all;
}

Tensor shared_attention(const RowShare& share, const Tensor& qkv, const AttentionLengths& lengths,
                        double scale, const AttentionBackend& attention) {
  Ranks& ranks = *share.ranks;
  const std::int64_t of_heads = size_of(&ranks, RankAxis::ulysses);
  const std::int64_t samples = qkv.size(0), own = qkv.size(1), heads = qkv.size(3);
  const std::int64_t each = (heads + of_heads - 1) / of_heads, missing = each * of_heads - heads;
  Tensor all = missing == 0 ? qkv : at::constant_pad_nd(qkv, {0, 0, 0, missing});
  if (of_heads > 1) all = rows_for_heads(ranks, all, each);
  const Tensor q = all.select(2, 0).flatten(0, 1);
  Tensor kv = all.narrow(2, 1, 2);
  if (size_of(&ranks, RankAxis::ring) > 1) kv = rows_of_ring(ranks, kv);
  Tensor out =
      attention.forward({q, kv.select(2, 0), kv.select(2, 1), &lengths, /*causal=*/false, scale});
  if (of_heads > 1) out = heads_for_rows(ranks, out.unflatten(0, {samples, -1}));
  return out.reshape({samples * own, -1}).narrow(1, 0, heads * qkv.size(4)).contiguous();
}

}  // namespace diptych
