// The choices that the code leaves open because the best one depends on device and shape: what they
// are called, which there are, and where one is impossible. None changes a result beyond rounding.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace diptych {

// Each is made by widths of the model and the rows of a call, in bfloat16.
enum class TunedKernel {
  linear_fp8,         // outputs, inputs -> Fp8Product
  linear_int8,        // outputs, inputs -> Int8Product
  add_rms_norm,       // width -> NormVectors
  add_rms_norm_e4m3,  // width -> NormVectors, of rows that are quantised to e4m3
  gated_linear,       // inner, inputs -> GatedProduct
  silu_mul_e4m3,      // inner -> SiluVectors, of rows that are quantised to e4m3
  quantize_rows,      // width -> QuantizeVectors, to e4m3
  attention,  // heads, kv_heads, head_dim -> FirstAttention; the rows are a sample's queries
};
// Row kernels: as LinearRowArgs::shape 0, or of so many warps a block and steps of each on their
// way as the name says.
enum class Fp8Product { row_kernel, cublas, cutlass, row_kernel_4x4, row_kernel_4x8 };
// copy: of the weights in the rows' dtype. Mixed: int8 and the rows' dtype in one kernel
// (int8_linear), of 64, 128 or 256 rows at a time; a copy where there is none for the device.
enum class Int8Product {
  row_kernel,
  copy,
  row_kernel_4x4,
  row_kernel_4x8,
  mixed_64,
  mixed_128,
  mixed_256
};
enum class GatedProduct { one_kernel, two_kernels };  // two: a library's product, then silu_mul
enum class NormVectors { one, two, four };            // 16 bytes each, that a thread takes of a row
enum class QuantizeVectors { four, two };             // the same; QuantizeRowsArgs::shape
// Of rows that are fetched ahead; or they are not. SiluMulArgs::shape.
enum class SiluVectors { three, four, not_ahead };
enum class FirstAttention { cudnn, flash, sdpa, splitkv, hopper };  // that `auto` asks first

using TunedShape = std::array<std::int64_t, 3>;  // in the order of TunedKernelInfo::widths, then 0

struct TunedKernelInfo {
  TunedKernel kernel;
  std::string_view name;
  std::span<const std::string_view> widths;
  std::span<const std::string_view> choices;  // in the order of their enum
  std::int64_t least_rows;                    // fewer leave no choice
};
std::span<const TunedKernelInfo> tuned_kernels();
const TunedKernelInfo& info_of(TunedKernel kernel);

// Whether cuBLASLt has no algorithm for a row-wise scaled product. Where tiles of the result are
// fewer than multiprocessors and sums are long it would split the sums, which it cannot with such
// scales: CUBLAS_STATUS_NOT_SUPPORTED for 3 x 18944 -> 3584 on an H200 (cuBLAS 13.0), and up to 256
// rows of 9216 -> 3072 on an H100 (pytorch/ao, issue 4582); sums of 3584 were served at 3 to 1026
// rows.
bool exceeds_cublas(std::int64_t rows, std::int64_t outputs, std::int64_t inputs);

// LinearRowArgs::shape of a row kernel; nothing of the other products.
std::optional<int> row_kernel_shape(Fp8Product product);
std::optional<int> row_kernel_shape(Int8Product product);
std::optional<int> mixed_shape(Int8Product product);  // Int8LinearArgs::shape

// What is taken where nothing was measured.
Fp8Product usual_fp8_product(std::int64_t rows, std::int64_t outputs, std::int64_t inputs);
Int8Product usual_int8_product(std::int64_t rows, std::int64_t outputs, std::int64_t inputs);
inline constexpr std::int64_t kFewestMixedRows = 2048;
GatedProduct usual_gated_product(std::int64_t rows);
inline constexpr std::int64_t kFewestGatedRows = 640;
// Of attention, by the queries of the longest sample: splitkv up to the most that it takes, then
// flash, as fewer than kFewQueries are not worth a plan of cuDNN's; then hopper, and where that
// does not serve, the device's order.
FirstAttention usual_attention(std::int64_t queries);
inline constexpr std::int64_t kMostSplitQueries = 16;
inline constexpr std::int64_t kFewQueries = 128;
// Of one sample, from which on attention in e4m3 is worth the quantising of what it reads.
inline constexpr std::int64_t kFewestFp8Queries = 2048;
inline constexpr NormVectors kUsualNormVectors = NormVectors::two;
inline constexpr SiluVectors kUsualSiluVectors = SiluVectors::three;
QuantizeVectors usual_quantize_vectors(std::int64_t rows);

// Why a call of so many rows cannot have that choice, or nothing. What is possible with some rows
// is so with fewer (row kernels, splitkv), or with more (all others).
std::optional<std::string> impossible_choice(TunedKernel kernel, const TunedShape& shape,
                                             std::int64_t rows, int choice);

}  // namespace diptych
