// Generation rows of a call that ranks divide among them (sequence parallel).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "lib/runtime/ranks.h"

namespace diptych {

// Every rank has as many rows of each sample, one part behind the other. Where that is more than
// there are, the last row fills the last parts: computed twice, it is the same.
class MotRowShare {
 public:
  // `rows`: generation rows of each sample.
  MotRowShare(Ranks& ranks, std::span<const std::int64_t> rows, at::Device device);

  const std::vector<std::int64_t>& own_rows() const { return own_rows_; }  // of each sample
  std::int64_t own() const { return index_.size(0); }                      // of all samples
  // [rows of all samples, ...] -> [own(), ...].
  Tensor cut(const Tensor& all) const { return all.index_select(0, index_); }
  // [own(), ...] of each rank -> [rows of all samples, ...]. All ranks call it.
  Tensor join(const Tensor& own) const;
  // Puts the keys and values of all ranks in their slots: [slots, kv_heads, head_dim] each, of
  // which `own_slots` int64 [own()] are written here, and `all_slots` int64 [rows of all samples]
  // afterwards. All ranks call it. With four key heads, and up to eight ranks, this moves no more
  // than an exchange of rows for heads (Ulysses) would.
  void exchange(const Tensor& keys, const Tensor& values, const Tensor& own_slots,
                const Tensor& all_slots) const;

 private:
  Tensor in_order(const Tensor& parts) const;  // [ranks, own(), ...] -> [rows of all samples, ...]

  Ranks& ranks_;
  std::vector<std::int64_t> own_rows_;
  Tensor index_;  // int64 [own()]: rows of this rank among all
  Tensor place_;  // int64 [rows of all samples]: rows among those of all ranks, flattened
};

}  // namespace diptych
