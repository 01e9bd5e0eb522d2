// GroupNorm and SiLU of feature maps whose channels lie next to each other in memory
// (channels_last), float32, in two steps. group_norm_table: the statistics of whole maps, as a
// factor and an offset of each channel. group_norm_silu: y = silu(x * factor + offset), of the maps
// or of some of their rows, rounded to TF32 on request for a convolution that would else cut its
// operands off.
//
// Bound: memory. The table reads x once, the second step reads it again and writes y. Sums are
// taken in the same order on every device and in every run: of each channel in float32 over up to
// kMaxChunks runs of pixels, shifted by the channel's first value so that a large mean loses no
// digits, then in float64.
#pragma once

#include "kernels/types.h"

namespace diptych::kernels {

// The runs of pixels that a map is summed in, each by one block: their number, and the pixels of
// one. The sizes alone decide.
inline constexpr std::int64_t kMaxChunks = 1024;
std::int64_t group_norm_chunks(std::int64_t pixels, std::int64_t channels);
std::int64_t group_norm_chunk_pixels(std::int64_t pixels, std::int64_t channels);
inline constexpr int kGroupNormThreads = 256;       // of a block
inline constexpr std::int64_t kGroupNormDepth = 8;  // pixels a thread, where there are as many

struct GroupNormTableArgs {
  const float* x = nullptr;       // [samples, pixels, channels], contiguous but for sample_stride
  const float* weight = nullptr;  // [channels]
  const float* bias = nullptr;    // [channels]
  float* sums = nullptr;   // workspace [samples, group_norm_chunks(), channels, 2]; not for the ref
  float* table = nullptr;  // [samples, 2, channels]: factors, then offsets
  std::int64_t samples = 0, pixels = 0, channels = 0, groups = 0;
  std::int64_t sample_stride = 0;
  float eps = 0;
};

struct GroupNormSiluArgs {
  const float* x = nullptr;      // [samples, pixels, channels], contiguous but for x_sample_stride
  const float* table = nullptr;  // of group_norm_table
  float* y = nullptr;            // likewise with y_sample_stride; may be x
  std::int64_t samples = 0, pixels = 0, channels = 0;
  std::int64_t x_sample_stride = 0, y_sample_stride = 0;
  bool silu = true;
  bool round_to_tf32 = false;  // to the nearest, ties away from zero
};

const char* group_norm_table_unsupported(const GroupNormTableArgs& args);
const char* group_norm_table(const GroupNormTableArgs& args, CUstream_st* stream);
void group_norm_table_ref(const GroupNormTableArgs& args);

const char* group_norm_silu_unsupported(const GroupNormSiluArgs& args);
const char* group_norm_silu(const GroupNormSiluArgs& args, CUstream_st* stream);
void group_norm_silu_ref(const GroupNormSiluArgs& args);

}  // namespace diptych::kernels
