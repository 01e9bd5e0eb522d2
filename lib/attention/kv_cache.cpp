#include "lib/attention/kv_cache.h"

namespace diptych {

KvCache::KvCache(KvShape shape, std::int64_t rows, std::int64_t capacity,
                 const at::TensorOptions& options)
    : shape_(shape), capacity_(capacity), lengths_(static_cast<std::size_t>(rows), 0) {
  TORCH_CHECK(rows > 0 && capacity > 0, "[kv_cache] rows ", rows, ", capacity ", capacity);
  // Zeros, not empty: what lies behind a context must be finite (AttentionCall).
  keys_ = at::zeros({shape.layers, rows, capacity, shape.kv_heads, shape.head_dim}, options);
  values_ = at::zeros_like(keys_);
}

std::int64_t KvCache::rounded_capacity(std::int64_t rows) {
  constexpr std::int64_t kStep = 64;
  return (rows + kStep - 1) / kStep * kStep;
}

Tensor KvCache::keys(std::int64_t layer) const {
  return keys_.select(0, layer);
}
Tensor KvCache::values(std::int64_t layer) const {
  return values_.select(0, layer);
}

void KvCache::advance(std::int64_t row, std::int64_t tokens) {
  truncate(row, length(row) + tokens);
}

void KvCache::truncate(std::int64_t row, std::int64_t length) {
  TORCH_CHECK(length >= 0 && length <= capacity_, "[kv_cache] length ", length, " of ", capacity_);
  lengths_.at(static_cast<std::size_t>(row)) = length;
}

void KvCache::copy_row(std::int64_t row, const KvCache& from, std::int64_t from_row,
                       std::int64_t length) {
  TORCH_CHECK(length <= from.length(from_row), "[kv_cache] copies ", length, " of ",
              from.length(from_row));
  write_row(row, from.keys_.select(1, from_row).narrow(1, 0, length),
            from.values_.select(1, from_row).narrow(1, 0, length));
}

Tensor KvCache::row_keys(std::int64_t row) const {
  return keys_.select(1, row).narrow(1, 0, length(row));
}
Tensor KvCache::row_values(std::int64_t row) const {
  return values_.select(1, row).narrow(1, 0, length(row));
}

void KvCache::write_row(std::int64_t row, const Tensor& keys, const Tensor& values) {
  truncate(row, keys.size(1));
  if (keys.size(1) == 0) return;
  row_keys(row).copy_(keys);
  row_values(row).copy_(values);
}

}  // namespace diptych
