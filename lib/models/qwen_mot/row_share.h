// Generation rows of a call that ranks divide among them (sequence parallel).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "lib/runtime/ranks.h"

namespace diptych {

struct MotHeads {
  std::int64_t heads = 0, kv_heads = 0;
};

// Every rank has as many rows of each sample, one part behind the other. Where that is more than
// there are, the last row fills the last parts: computed twice, it is the same.
//
// Ranks of a ring group keep their queries and get the keys and values of all rows. Those of an
// ulysses group attend with a part of the heads of all their rows (DeepSpeed Ulysses, Jacobs et
// al., arXiv 2309.14509): each of as many key heads, with their query heads. From twice as many
// ranks as key heads on, several divide the query heads of one. Where heads do not divide, the last
// ranks repeat heads of others.
class MotRowShare {
 public:
  // `rows`: generation rows of each sample.
  MotRowShare(Ranks& ranks, std::span<const std::int64_t> rows, const MotHeads& heads,
              at::Device device);

  std::int64_t own() const { return index_.size(0); }  // rows of all samples
  bool by_heads() const { return ulysses_ > 1; }
  // Queries of each sample in this rank's attention: its rows, or those of its ulysses group.
  std::vector<std::int64_t> attending_rows() const;
  // [rows of all samples, ...] -> [own(), ...].
  Tensor cut(const Tensor& all) const { return all.index_select(0, index_); }
  // [own(), ...] of each rank -> [rows of all samples, ...]. All ranks call it.
  Tensor join(const Tensor& own) const;
  // Puts the keys and values of all ranks in their slots, where this rank attends to them: [slots,
  // kv_heads, head_dim] each, of which `own_slots` int64 [own()] are written here, and `all_slots`
  // int64 [rows of all samples] afterwards. All ranks call it.
  void exchange(const Tensor& keys, const Tensor& values, const Tensor& own_slots,
                const Tensor& all_slots) const;

  // Of ranks that attend by heads, what one attends with.
  const MotHeads& attending_heads() const { return each_; }
  // [..., kv_heads, head_dim] -> a view of the key heads that this rank attends to.
  Tensor own_key_heads(const Tensor& keys) const;
  // [rows, heads, head_dim] -> a view of the query heads that this rank attends with.
  Tensor own_query_heads(const Tensor& q) const;
  // q [own(), heads, head_dim] -> [attending rows, own query heads, head_dim], sample after sample.
  // All ranks call it, and the next two.
  Tensor rows_for_heads(const Tensor& q) const;
  // What was attended, of the same shape -> [own(), heads, head_dim].
  Tensor heads_for_rows(const Tensor& attended) const;
  // [rows, own query heads, head_dim] of rows that every rank has -> [rows, heads, head_dim].
  Tensor join_heads(const Tensor& attended) const;

 private:
  struct HeadRange {
    std::int64_t first_key, first_query;
  };
  HeadRange head_range(std::int64_t rank) const;
  void divide_heads(const MotHeads& heads, at::Device device);
  Tensor in_order(const Tensor& parts) const;  // [ranks, own(), ...] -> [rows of all samples, ...]
  // [ranks of the ulysses group, rows, heads of each, head_dim] -> [rows, heads, head_dim].
  Tensor in_order_of_heads(const Tensor& parts) const;

  Ranks& ranks_;
  std::int64_t ulysses_ = 1;            // ranks of the group
  std::vector<std::int64_t> own_rows_;  // of each sample
  Tensor index_;                        // int64 [own()]: rows of this rank among all
  Tensor place_;   // int64 [rows of all samples]: rows among those of all ranks, flattened
  MotHeads all_;   // of the model
  MotHeads each_;  // of a rank
  std::int64_t ranks_of_key_ = 1;  // that divide the query heads of one key head
  // int64: heads that go to each rank, one rank behind the other, and of each query head the first
  // place among those. Undefined where these are the heads as they are.
  Tensor sent_keys_, sent_queries_, head_place_;
  // int64: rows of the ulysses group, [ranks, own()] flattened, sample after sample; and back.
  // Undefined for one sample, whose order is the same.
  Tensor by_sample_, by_rank_;
};

}  // namespace diptych
