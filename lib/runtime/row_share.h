// Rows of a picture or clip that ranks divide among them (sequence parallel), and attention over
// all of them.
#pragma once

#include <cstdint>

#include "lib/attention/attention.h"
#include "lib/runtime/ranks.h"

namespace diptych {

// Every rank of the ulysses group has as many rows of each sample, one part behind the other. Where
// that is more than there are, rows of zeros fill the last parts.
struct RowShare {
  Ranks* ranks = nullptr;  // null: this process has all rows

  bool divides() const { return ranks != nullptr && ranks->comm().ulysses.size > 1; }
  std::int64_t parts() const;
  std::int64_t own(std::int64_t rows) const;  // of `rows`, zeros included
  std::int64_t padded(std::int64_t rows) const { return parts() * own(rows); }
  // [..., rows, ...] along a dimension -> [..., own(rows), ...].
  Tensor cut(const Tensor& all, std::int64_t dim) const;
  // [samples, own(rows), width] -> [samples, rows, width]; all ranks call it.
  Tensor join(const Tensor& own, std::int64_t rows) const;
};

// Self attention over the rows of all ranks, each of which takes a part of the heads for it
// (DeepSpeed Ulysses, Jacobs et al., arXiv 2309.14509). Where heads do not divide, heads of zeros
// fill the last part. qkv [samples, own rows, 3, heads, head_dim], contiguous; `lengths`: of each
// sample padded(rows) queries, `rows` keys, padded(rows) as capacity -> [samples * own rows,
// heads * head_dim]. All ranks call it; `share` divides.
Tensor ulysses_attention(const RowShare& share, const Tensor& qkv, const AttentionLengths& lengths,
                         double scale, const AttentionBackend& attention);

}  // namespace diptych
