// What attention in e4m3 reads, made of q, k and v: k and v with one scale each over all rows that
// count, q, whose heads have been normed, with a fixed one.
//   scale_k = max |k| / 448, no less than the smallest normal float, and v's alike
//   values = x * (1 / scale) rounded to nearest, ties to even, and at most 448 in magnitude
// Rows of k and v that do not count become zeros. The output has v's scale: it is a mean of v's
// rows, so none of it is beyond 448 either. An infinity or a NaN among k or v makes its scale, and
// so what attention gives, not finite.
//
// Bound: memory. Reads rows * q_width elements once and the rows that count of k and v twice,
// writes a byte an element.
#pragma once

#include "kernels/types.h"

namespace diptych::kernels {

// q's: covers what a norm over a head of 128 with weights of up to 9.8 can give, which is sqrt(128)
// times the weight (beyond 112 all is 112), and keeps the precision of e4m3 down to 1/256.
inline constexpr float kNormedQueryScale = 0.25f;

// What the values of each must be multiplied with.
enum class AttentionScale : std::int32_t { q, keys, values };
inline constexpr int kAttentionScales = 3;

// Attention reads values with the keys of a dimension behind each other. They lie in blocks of
// kValueBlockKeys keys of one head of kValueBlockDims: the dimensions one after the other, each a
// row of kValueBlockKeys bytes, whose 16-byte part c lies at c xor (dimension / 4 modulo 2), the
// swizzle of rows of 32 bytes (PTX ISA, "Matrix and Operand Layout", wgmma). In a part, place 4p +
// b holds the key 8 * (b / 2) + 2p + b % 2 of 16: the order in which a thread has their weights.
inline constexpr std::int64_t kValueBlockKeys = 32, kValueBlockDims = 128;
inline constexpr std::int64_t kValueBlockBytes = kValueBlockKeys * kValueBlockDims;
// Where in a block the value of a key and a dimension lies.
DIPTYCH_HOST_DEVICE constexpr std::int64_t place_in_value_block(std::int64_t key,
                                                                std::int64_t dim) {
  const std::int64_t part = key / 16 % 2 ^ dim / 4 % 2, within = key % 16;
  return dim * kValueBlockKeys + part * 16 + within / 2 % 4 * 4 + within / 8 * 2 + within % 2;
}

struct QuantizeAttentionArgs {
  const void* q = nullptr;                   // [rows, q_width]
  const void* keys = nullptr;                // [samples, capacity, kv_width]
  const void* values = nullptr;              // likewise
  const std::int32_t* key_counts = nullptr;  // [samples], 0 to capacity
  void* q_values = nullptr;                  // e4m3 [rows, q_width], packed; so are keys
  void* key_values = nullptr;                // [samples, capacity, kv_width]
  void* value_values = nullptr;              // [samples, kv_heads, value_blocks] blocks, of zeros
                                             // behind the keys
  float* scales = nullptr;                   // [kAttentionScales]
  float* row_scales = nullptr;               // [rows]: of every row of the output, v's
  std::uint32_t* most = nullptr;             // scratch, kQuantizeAttentionScratch numbers
  std::int64_t rows = 0, q_width = 0, samples = 0, capacity = 0;
  std::int64_t kv_width = 0;                              // a multiple of kValueBlockDims
  std::int64_t q_stride = 0;                              // between rows
  std::int64_t key_stride = 0, value_stride = 0;          // between samples
  std::int64_t key_row_stride = 0, value_row_stride = 0;  // between rows
  std::int64_t value_blocks = 0;                          // no less than what holds `capacity` keys
  DType dtype = DType::f32;
};

// Numbers that `most` must hold: the largest magnitudes of k, then of v, that each block of the
// first kernel finds.
inline constexpr int kMostBlocks = 264;  // two for each multiprocessor of an H200
inline constexpr std::int64_t kQuantizeAttentionScratch = 2 * kMostBlocks;
const char* quantize_attention_unsupported(const QuantizeAttentionArgs& args);
const char* quantize_attention(const QuantizeAttentionArgs& args, CUstream_st* stream);
// `most` is not used.
void quantize_attention_ref(const QuantizeAttentionArgs& args);

}  // namespace diptych::kernels
