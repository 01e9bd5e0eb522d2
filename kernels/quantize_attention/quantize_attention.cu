#include "kernels/device_quantize.cuh"
#include "kernels/quantize_attention/quantize_attention.h"

namespace diptych::kernels {
namespace {

constexpr int kThreads = 256;
constexpr int kEach = 4;  // vectors of a thread, all on their way at once
constexpr unsigned kOfBlock = kThreads * kEach;

// Where vector `index` of k or v is: its sample, its row and its first element there.
struct Place {
  unsigned sample, row, element;
};

template <int kCount>
__device__ __forceinline__ Place place_of(const QuantizeAttentionArgs& args, unsigned index) {
  const auto vectors = static_cast<unsigned>(args.kv_width / kCount);
  const auto capacity = static_cast<unsigned>(args.capacity);
  const unsigned row = index / vectors;
  return {row / capacity, row % capacity, index % vectors * kCount};
}

__device__ __forceinline__ bool counts(const QuantizeAttentionArgs& args, const Place& at) {
  return static_cast<std::int64_t>(at.row) < args.key_counts[at.sample];
}

template <typename T, int kCount>
__device__ __forceinline__ Vector<T, kCount> load_at(const void* from, std::int64_t stride,
                                                     std::int64_t row_stride, const Place& at) {
  return load<T, kCount>(static_cast<const T*>(from) + at.sample * stride + at.row * row_stride +
                         at.element);
}

// Block b's largest magnitudes of k and v: most[b], most[kMostBlocks + b].
template <typename T, int kCount>
__global__ void __launch_bounds__(kThreads)
    most_of_keys(const QuantizeAttentionArgs args, unsigned vectors) {
  unsigned keys = 0, values = 0;
  constexpr unsigned kStep = kMostBlocks * kThreads;
  for (unsigned first = blockIdx.x * kThreads + threadIdx.x; first < vectors;
       first += kEach * kStep) {
    Vector<T, kCount> key[kEach]{}, value[kEach]{};
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const unsigned index = first + i * kStep;
      if (index >= vectors) break;
      const Place at = place_of<kCount>(args, index);
      if (!counts(args, at)) continue;
      key[i] = load_at<T, kCount>(args.keys, args.key_stride, args.key_row_stride, at);
      value[i] = load_at<T, kCount>(args.values, args.value_stride, args.value_row_stride, at);
    }
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      keys = most_of(keys, key[i]);
      values = most_of(values, value[i]);
    }
  }
  keys = join_row<Most>(keys, 0);
  values = join_row<Most>(values, 1);
  if (threadIdx.x == 0) {
    args.most[blockIdx.x] = keys;
    args.most[kMostBlocks + blockIdx.x] = values;
  }
}

template <typename T, int kCount>
__device__ __forceinline__ void quantize_queries(const QuantizeAttentionArgs& args, unsigned block,
                                                 unsigned vectors) {
  const auto of_row = static_cast<unsigned>(args.q_width / kCount);
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const unsigned index = block * kOfBlock + i * kThreads + threadIdx.x;
    if (index >= vectors) return;
    const T* from =
        static_cast<const T*>(args.q) + index / of_row * args.q_stride + index % of_row * kCount;
    store_quantized(
        static_cast<__nv_fp8_e4m3*>(args.q_values) + static_cast<std::int64_t>(index) * kCount,
        load<T, kCount>(from), 1 / kNormedQueryScale);
  }
}

__device__ __forceinline__ float value_scale_of(const QuantizeAttentionArgs& args, int turn) {
  unsigned most = 0;
  for (int i = static_cast<int>(threadIdx.x); i < kMostBlocks; i += kThreads)
    most = max(most, args.most[kMostBlocks + i]);
  return scale_of_row(most, kE4m3Limit, turn);
}

// A warp takes 4 * kCount dimensions of a block of values.
template <int kCount>
inline constexpr unsigned kGroupsOfBlock = kValueBlockDims / (4 * kCount);

// Lane p + 4h + 8v reads of part h the keys of the places 4p to 4p + 3, and kCount dimensions of
// them. Eight lanes then write a row of the block.
template <typename T, int kCount>
__device__ __forceinline__ void quantize_value_blocks(const QuantizeAttentionArgs& args,
                                                      unsigned block, unsigned units) {
  const float inverse = __frcp_rn(value_scale_of(args, 0));
  const unsigned unit = block * (kThreads / kWarp) + threadIdx.x / kWarp;
  if (unit >= units) return;
  const unsigned lane = threadIdx.x % kWarp;
  const unsigned value_block = unit / kGroupsOfBlock<kCount>;
  const auto blocks = static_cast<unsigned>(args.value_blocks);
  const auto heads = static_cast<unsigned>(args.kv_width / kValueBlockDims);
  const unsigned sample = value_block / blocks / heads, head = value_block / blocks % heads;
  const unsigned dim = (unit % kGroupsOfBlock<kCount> * 4 + lane / 8) * kCount;
  const unsigned first_key = lane / 4 % 2 * 16 + lane % 4 * 2;  // in the block
  Vector<T, kCount> values[4]{};
  float inverses[4]{};
#pragma unroll
  for (unsigned i = 0; i < 4; ++i) {
    const unsigned key = first_key + i / 2 * 8 + i % 2;
    const Place at = {sample, value_block % blocks * static_cast<unsigned>(kValueBlockKeys) + key,
                      head * static_cast<unsigned>(kValueBlockDims) + dim};
    if (static_cast<std::int64_t>(at.row) >= args.capacity || !counts(args, at)) continue;
    values[i] = load_at<T, kCount>(args.values, args.value_stride, args.value_row_stride, at);
    inverses[i] = inverse;  // as in quantize_keys
  }
  auto* const to = static_cast<std::uint8_t*>(args.value_values) +
                   static_cast<std::int64_t>(value_block) * kValueBlockBytes;
#pragma unroll
  for (unsigned d = 0; d < kCount; ++d) {
    const auto scaled = [&](int i) { return __fmul_rn(widen(values[i].at[d]), inverses[i]); };
    const auto pair = [&](int i) -> unsigned {
      return __nv_cvt_float2_to_fp8x2(make_float2(scaled(i), scaled(i + 1)), __NV_SATFINITE,
                                      __NV_E4M3);
    };
    *reinterpret_cast<unsigned*>(to + place_in_value_block(first_key, dim + d)) =
        pair(0) | pair(2) << 16;
  }
}

template <typename T, int kCount>
__device__ __forceinline__ void quantize_keys(const QuantizeAttentionArgs& args, unsigned vectors) {
  unsigned most_key = 0;
  for (int i = static_cast<int>(threadIdx.x); i < kMostBlocks; i += kThreads)
    most_key = max(most_key, args.most[i]);
  const float key_scale = scale_of_row(most_key, kE4m3Limit, 0);
  const float value_scale = value_scale_of(args, 1);
  const float inverse = __frcp_rn(key_scale);
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const unsigned index = blockIdx.x * kOfBlock + i * kThreads + threadIdx.x;
    if (index >= vectors) break;
    const Place at = place_of<kCount>(args, index);
    const bool used = counts(args, at);
    Vector<T, kCount> key{};
    if (used) key = load_at<T, kCount>(args.keys, args.key_stride, args.key_row_stride, at);
    const std::int64_t to = static_cast<std::int64_t>(index) * kCount;
    // A scale that is not finite must not make NaN of rows that do not count.
    store_quantized(static_cast<__nv_fp8_e4m3*>(args.key_values) + to, key, used ? inverse : 0.0f);
  }
  if (blockIdx.x == 0 && threadIdx.x == 0) {
    const auto write = [&](AttentionScale scale, float number) {
      args.scales[static_cast<int>(scale)] = number;
    };
    write(AttentionScale::q, kNormedQueryScale);
    write(AttentionScale::keys, key_scale);
    write(AttentionScale::values, value_scale);
  }
  for (std::int64_t row = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
       row < args.rows;
       row += static_cast<std::int64_t>((vectors + kOfBlock - 1) / kOfBlock) * kThreads) {
    args.row_scales[row] = value_scale;
  }
}

// The first blocks take k, the next ones v, the others q.
template <typename T, int kCount>
__global__ void __launch_bounds__(kThreads)
    quantize_attention_kernel(const QuantizeAttentionArgs args, unsigned kv_vectors,
                              unsigned value_units, unsigned q_vectors) {
  const unsigned kv_blocks = (kv_vectors + kOfBlock - 1) / kOfBlock;
  constexpr unsigned kWarps = kThreads / kWarp;
  const unsigned before_q = kv_blocks + (value_units + kWarps - 1) / kWarps;
  if (blockIdx.x < kv_blocks) {
    quantize_keys<T, kCount>(args, kv_vectors);
  } else if (blockIdx.x < before_q) {
    quantize_value_blocks<T, kCount>(args, blockIdx.x - kv_blocks, value_units);
  } else {
    quantize_queries<T, kCount>(args, blockIdx.x - before_q, q_vectors);
  }
}

template <typename T, int kCount>
void launch(const QuantizeAttentionArgs& args, CUstream_st* stream) {
  const auto kv_vectors =
      static_cast<unsigned>(args.samples * args.capacity * (args.kv_width / kCount));
  const auto q_vectors = static_cast<unsigned>(args.rows * (args.q_width / kCount));
  const auto value_units = static_cast<unsigned>(args.samples * (args.kv_width / kValueBlockDims) *
                                                 args.value_blocks * kGroupsOfBlock<kCount>);
  const auto blocks_for = [](unsigned count, unsigned each) { return (count + each - 1) / each; };
  most_of_keys<T, kCount><<<kMostBlocks, kThreads, 0, stream>>>(args, kv_vectors);
  quantize_attention_kernel<T, kCount>
      <<<blocks_for(kv_vectors, kOfBlock) + blocks_for(value_units, kThreads / kWarp) +
             blocks_for(q_vectors, kOfBlock),
         kThreads, 0, stream>>>(args, kv_vectors, value_units, q_vectors);
}

}  // namespace

const char* quantize_attention_unsupported(const QuantizeAttentionArgs& args) {
  if (args.rows < 1 || args.samples < 1 || args.capacity < 1)
    return "there are no queries or no keys";
  if (args.q_width < 1 || args.kv_width < 1) return "a width is below 1";
  for (const std::int64_t elements :
       {args.q_width, args.kv_width, args.q_stride, args.key_stride, args.value_stride,
        args.key_row_stride, args.value_row_stride}) {
    if (!vectors_fit(args.dtype, elements)) return "widths or strides are no multiples of 16 bytes";
  }
  for (const void* pointer :
       {args.q, args.keys, args.values, static_cast<const void*>(args.q_values),
        static_cast<const void*>(args.key_values), static_cast<const void*>(args.value_values)}) {
    if (!aligned(pointer)) return "a tensor does not begin at a multiple of 16 bytes";
  }
  if (args.kv_width % kValueBlockDims != 0) return "key heads are not of 128";
  if (args.value_blocks * kValueBlockKeys < args.capacity)
    return "values have too few blocks for the keys";
  if (args.rows * args.q_width > kMaxBlocks ||
      args.samples * args.kv_width * args.value_blocks * kValueBlockKeys > kMaxBlocks)
    return "more than 2^31 - 1 elements";
  return nullptr;
}

const char* quantize_attention(const QuantizeAttentionArgs& args, CUstream_st* stream) {
  if (const char* reason = quantize_attention_unsupported(args)) return reason;
  return launch_typed(args.dtype, true, [&]<typename T, int kCount>() {
    if constexpr (kCount > 1) launch<T, kCount>(args, stream);
  });
}

}  // namespace diptych::kernels
