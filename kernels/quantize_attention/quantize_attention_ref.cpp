#include <cstring>

#include "kernels/host_quantize.h"
#include "kernels/quantize_attention/quantize_attention.h"

namespace diptych::kernels {
namespace {

struct Rows {  // k or v
  const void* from;
  std::int64_t stride, row_stride;
  void* to;
  std::int64_t blocks;  // of values; 0: rows are written as they are read
};

// Calls body(row to read or null, its sample, the row) for all rows of k or v.
template <typename T, typename Body>
void for_each_row(const QuantizeAttentionArgs& args, const Rows& rows, const Body& body) {
  for (std::int64_t sample = 0; sample < args.samples; ++sample) {
    for (std::int64_t row = 0; row < args.capacity; ++row) {
      const T* from =
          static_cast<const T*>(rows.from) + sample * rows.stride + row * rows.row_stride;
      body(row < args.key_counts[sample] ? from : nullptr, sample, row);
    }
  }
}

template <typename T>
float quantize_together(const QuantizeAttentionArgs& args, const Rows& rows) {
  float most = 0;
  for_each_row<T>(args, rows, [&](const T* from, std::int64_t, std::int64_t) {
    for (std::int64_t i = 0; from != nullptr && i < args.kv_width; ++i) {
      const float size = std::abs(widen(from[i]));
      if (!std::isnan(most) && !(size <= most)) most = size;
    }
  });
  float scale = most / stored_limit(Stored::e4m3);
  if (scale < std::numeric_limits<float>::min()) scale = std::numeric_limits<float>::min();
  const float inverse = 1 / scale;
  const std::int64_t heads = args.kv_width / kValueBlockDims;
  if (rows.blocks > 0)
    std::memset(rows.to, 0,
                static_cast<std::size_t>(args.samples * heads * rows.blocks * kValueBlockBytes));
  for_each_row<T>(args, rows, [&](const T* from, std::int64_t sample, std::int64_t row) {
    for (std::int64_t i = 0; i < args.kv_width; ++i) {
      std::int64_t to = (sample * args.capacity + row) * args.kv_width + i;
      if (rows.blocks > 0) {
        const std::int64_t head = sample * heads + i / kValueBlockDims;
        to = (head * rows.blocks + row / kValueBlockKeys) * kValueBlockBytes +
             place_in_value_block(row % kValueBlockKeys, i % kValueBlockDims);
      }
      static_cast<HostE4m3*>(rows.to)[to] =
          round_to<HostE4m3>(from == nullptr ? 0.0f : widen(from[i]) * inverse);
    }
  });
  return scale;
}

}  // namespace

void quantize_attention_ref(const QuantizeAttentionArgs& args) {
  with_host_type(args.dtype, [&](auto type) {
    using T = decltype(type);
    for (std::int64_t row = 0; row < args.rows; ++row) {
      const T* from = static_cast<const T*>(args.q) + row * args.q_stride;
      auto* to = static_cast<HostE4m3*>(args.q_values) + row * args.q_width;
      for (std::int64_t i = 0; i < args.q_width; ++i)
        to[i] = round_to<HostE4m3>(widen(from[i]) / kNormedQueryScale);
    }
    const float keys = quantize_together<T>(
        args, {args.keys, args.key_stride, args.key_row_stride, args.key_values, 0});
    const float values =
        quantize_together<T>(args, {args.values, args.value_stride, args.value_row_stride,
                                    args.value_values, args.value_blocks});
    const auto write = [&](AttentionScale scale, float number) {
      args.scales[static_cast<int>(scale)] = number;
    };
    write(AttentionScale::q, kNormedQueryScale);
    write(AttentionScale::keys, keys);
    write(AttentionScale::values, values);
    for (std::int64_t row = 0; row < args.rows; ++row) args.row_scales[row] = values;
  });
}

}  // namespace diptych::kernels
