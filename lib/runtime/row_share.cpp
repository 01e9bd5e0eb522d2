#include "lib/runtime/row_share.h"

#include <algorithm>

#include <ATen/ATen.h>

namespace diptych {

std::int64_t RowShare::parts() const {
  return ranks == nullptr ? 1 : static_cast<std::int64_t>(ranks->comm().ulysses.size);
}

std::int64_t RowShare::own(std::int64_t rows) const {
  return (rows + parts() - 1) / parts();
}

Tensor RowShare::cut(const Tensor& all, std::int64_t dim) const {
  if (!divides()) return all;
  const std::int64_t rows = all.size(dim), count = own(rows);
  const auto index = static_cast<std::int64_t>(ranks->comm().ulysses.index);
  const std::int64_t first = std::min(index * count, rows);
  const std::int64_t there = std::min(count, rows - first);
  const Tensor part = all.narrow(dim, first, there);
  if (there == count) return part.contiguous();
  std::vector<std::int64_t> sizes = all.sizes().vec();
  sizes[static_cast<std::size_t>(dim)] = count - there;
  return at::cat({part, at::zeros(sizes, all.options())}, dim);
}

Tensor RowShare::join(const Tensor& own, std::int64_t rows) const {
  if (!divides()) return own;
  const Tensor all = ranks->all_gather(RankAxis::ulysses, own.contiguous());
  return all.permute({1, 0, 2, 3}).flatten(1, 2).narrow(1, 0, rows);
}

Tensor ulysses_attention(const RowShare& share, const Tensor& qkv, const AttentionLengths& lengths,
                         double scale, const AttentionBackend& attention) {
  const std::int64_t parts = share.parts(), samples = qkv.size(0), own = qkv.size(1),
                     heads = qkv.size(3), head_dim = qkv.size(4);
  const std::int64_t each = (heads + parts - 1) / parts, missing = each * parts - heads;
  const Tensor filled = missing == 0 ? qkv : at::constant_pad_nd(qkv, {0, 0, 0, missing});
  const Tensor sent = filled.unflatten(3, {parts, each}).permute({3, 0, 1, 2, 4, 5}).contiguous();
  const Tensor whole = share.ranks->all_to_all(RankAxis::ulysses, sent)
                           .permute({1, 0, 2, 3, 4, 5})
                           .reshape({samples, parts * own, 3, each, head_dim});
  const Tensor out = attention.forward({whole.select(2, 0).flatten(0, 1), whole.select(2, 1),
                                        whole.select(2, 2), &lengths, /*causal=*/false, scale});
  const Tensor back =
      out.reshape({samples, parts, own, each * head_dim}).permute({1, 0, 2, 3}).contiguous();
  return share.ranks->all_to_all(RankAxis::ulysses, back)
      .permute({1, 2, 0, 3})
      .reshape({samples * own, parts * each * head_dim})
      .narrow(1, 0, heads * head_dim)
      .contiguous();
}

}  // namespace diptych
