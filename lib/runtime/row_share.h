// Rows of a picture or clip that ranks divide among them (sequence parallel), and attention over
// all of them.
#pragma once

#include <cstdint>

#include "lib/attention/attention.h"
#include "lib/runtime/ranks.h"

namespace diptych {

// Every rank of the ring and ulysses groups has as many rows of each sample, one part behind the
// other; those of an ulysses group lie together. Where that is more than there are, rows of zeros
// fill the last parts.
struct RowShare {
  Ranks* ranks = nullptr;  // null: this process has all rows

  bool divides() const { return parts() > 1; }
  std::int64_t parts() const;
  std::int64_t part() const;                  // which one this rank has
  std::int64_t own(std::int64_t rows) const;  // of `rows`, zeros included
  std::int64_t padded(std::int64_t rows) const { return parts() * own(rows); }
  // [..., rows, ...] along a dimension -> [..., own(rows), ...].
  Tensor cut(const Tensor& all, std::int64_t dim) const;
  // [samples, own(rows), width] -> [samples, rows, width]; all ranks call it.
  Tensor join(const Tensor& own, std::int64_t rows) const;
  // What shared_attention() takes: of each sample the queries of an ulysses group's rows, `rows`
  // keys, room for padded(rows).
  AttentionLengths lengths(std::int64_t samples, std::int64_t rows, at::Device device) const;
};

// part: contiguous, of one shape and dtype on all ranks that divide the rows -> [parts, ...], in
// the order of the parts. All of these ranks call it.
Tensor gather_parts(Ranks& ranks, const Tensor& part);

// Self attention over the rows of all ranks. Those of an ulysses group exchange rows for heads:
// each takes a part of the heads of all their rows (DeepSpeed Ulysses, Jacobs et al., arXiv
// 2309.14509); where heads do not divide, heads of zeros fill the last part. Those of a ring group
// keep their queries and get each other's keys and values, in one exchange (as Llama 3's context
// parallelism, arXiv 2407.21783, section 3.3.2): any backend serves that, while blocks that pass
// from rank to rank (Ring Attention, arXiv 2310.01889) need one that gives the log-sum-exp. qkv
// [samples, own rows, 3, heads, head_dim], contiguous; lengths: share.lengths(); `share` divides ->
// [samples * own rows, heads * head_dim]. All ranks call it.
Tensor shared_attention(const RowShare& share, const Tensor& qkv, const AttentionLengths& lengths,
                        double scale, const AttentionBackend& attention);

}  // namespace diptych
