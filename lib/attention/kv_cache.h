// The keys and values of several contexts (rows) in one preallocated buffer per layer, each with
// room behind its context for the tokens of a denoise block: a step writes there in place and
// concatenates nothing.
#pragma once

#include <cstdint>
#include <vector>

#include "lib/tensor/types.h"

namespace diptych {

struct KvShape {
  std::int64_t layers = 0, kv_heads = 0, head_dim = 0;
};

class KvCache {
 public:
  // `rows` or a few more: caches of about as many are of one size then, and share what depends on
  // it: cuDNN's plans, captured steps.
  static std::int64_t rounded_capacity(std::int64_t rows);
  KvCache(KvShape shape, std::int64_t rows, std::int64_t capacity,
          const at::TensorOptions& options);
  const KvShape& shape() const { return shape_; }
  std::int64_t rows() const { return static_cast<std::int64_t>(lengths_.size()); }
  std::int64_t capacity() const { return capacity_; }
  std::int64_t length(std::int64_t row) const { return lengths_.at(static_cast<std::size_t>(row)); }
  Tensor keys(std::int64_t layer) const;    // [rows, capacity, kv_heads, head_dim], a view
  Tensor values(std::int64_t layer) const;  // likewise
  void advance(std::int64_t row, std::int64_t tokens);  // after every layer has written them
  void truncate(std::int64_t row, std::int64_t length);
  // Copies the first `length` rows of a context; lengths follow. Rows may be of another cache.
  void copy_row(std::int64_t row, const KvCache& from, std::int64_t from_row, std::int64_t length);
  // The keys, or values, of a context in all layers: [layers, length, kv_heads, head_dim], a view.
  Tensor row_keys(std::int64_t row) const;
  Tensor row_values(std::int64_t row) const;
  // Copies such keys and values, of any device, to a context; its length follows.
  void write_row(std::int64_t row, const Tensor& keys, const Tensor& values);

 private:
  KvShape shape_;
  std::int64_t capacity_;
  std::vector<std::int64_t> lengths_;
  Tensor keys_, values_;  // [layers, rows, capacity, kv_heads, head_dim]
};

}  // namespace diptych
