#include <algorithm>
#include <array>
#include <cmath>
#include <stdexcept>

#include "kernels/host_float.h"
#include "kernels/qk_norm_rope/qk_norm_rope.h"
#include "kernels/row_sets.h"

namespace diptych::kernels {
namespace {

// Rounds an intermediate value, or keeps it in float32.
template <typename T>
float step(float value, bool every_step) {
  return every_step ? rounded<T>(value) : value;
}

template <typename T>
void norm_rope_head(const QkNormRopeArgs& args, const T* x, const T* weight, std::int64_t row,
                    T* out) {
  const bool every = args.round_every_step;
  const float* cos = args.cos + row * args.cos_stride;
  const float* sin = args.sin + row * args.sin_stride;
  double squares = 0;
  for (std::int64_t i = 0; i < args.head_dim; ++i) {
    squares += static_cast<double>(widen(x[i])) * static_cast<double>(widen(x[i]));
  }
  const double mean = squares / static_cast<double>(args.head_dim);
  const auto scale = static_cast<float>(1 / std::sqrt(mean + static_cast<double>(args.eps)));
  std::array<float, kMaxHeadDim> normed;
  for (std::int64_t i = 0; i < args.head_dim; ++i) {
    const float unit = step<T>(widen(x[i]) * scale, every);
    normed[static_cast<std::size_t>(i)] = step<T>(unit * widen(weight[i]), every);
  }
  const std::int64_t half = args.head_dim / 2;
  for (std::int64_t i = 0; i < half; ++i) {
    const float low = normed[static_cast<std::size_t>(i)];
    const float high = normed[static_cast<std::size_t>(i + half)];
    out[i] = round_to<T>(step<T>(low * cos[i], every) - step<T>(high * sin[i], every));
    out[i + half] = round_to<T>(step<T>(high * cos[i], every) + step<T>(low * sin[i], every));
  }
}

template <typename T>
void norm_rope_row(const QkNormRopeArgs& args, const QkNormRopeArgs::Set& set, std::int64_t row) {
  const std::int64_t dim = args.head_dim, slot = args.slots[row];
  if (slot < 0 || slot >= args.samples * args.capacity) {
    throw std::out_of_range("[qk_norm_rope] a slot lies outside the cache");
  }
  const T* qkv = static_cast<const T*>(args.qkv) + row * args.qkv_stride;
  T* q = static_cast<T*>(args.q) + row * args.heads * dim;
  const std::int64_t sample = slot / args.capacity;
  const std::int64_t place = slot % args.capacity * args.kv_heads * dim;
  T* key = static_cast<T*>(args.keys) + sample * args.key_stride + place;
  T* value = static_cast<T*>(args.values) + sample * args.value_stride + place;
  const T* q_weight = static_cast<const T*>(set.q_weight);
  const T* k_weight = static_cast<const T*>(set.k_weight);
  for (std::int64_t head = 0; head < args.heads; ++head) {
    norm_rope_head<T>(args, qkv + head * dim, q_weight, row, q + head * dim);
  }
  const T* k = qkv + args.heads * dim;
  for (std::int64_t head = 0; head < args.kv_heads; ++head) {
    norm_rope_head<T>(args, k + head * dim, k_weight, row, key + head * dim);
  }
  std::copy_n(k + args.kv_heads * dim, args.kv_heads * dim, value);
}

}  // namespace

void qk_norm_rope_ref(const QkNormRopeArgs& args) {
  with_host_type(args.dtype, [&](auto type) {
    for (const QkNormRopeArgs::Set& set : args.sets) {
      for_rows(set.rows, args.rows,
               [&](std::int64_t row) { norm_rope_row<decltype(type)>(args, set, row); });
    }
  });
}

}  // namespace diptych::kernels
