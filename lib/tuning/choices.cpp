#include "lib/tuning/choices.h"

#include <algorithm>

#include <fmt/format.h>

#include "kernels/linear_row/linear_row.h"
#include "kernels/quantize_rows/quantize_rows.h"
#include "kernels/silu_mul/silu_mul.h"

namespace diptych {
namespace {

using Name = std::string_view;
constexpr auto kMatrix = std::to_array<Name>({"outputs", "inputs"});
constexpr auto kGatedMatrix = std::to_array<Name>({"inner", "inputs"});
constexpr auto kRow = std::to_array<Name>({"width"});
constexpr auto kInner = std::to_array<Name>({"inner"});
constexpr auto kHeads = std::to_array<Name>({"heads", "kv_heads", "head_dim"});
constexpr auto kFp8Products =
    std::to_array<Name>({"row_kernel", "cublas", "cutlass", "row_kernel_4x4", "row_kernel_4x8"});
constexpr auto kInt8Products =
    std::to_array<Name>({"row_kernel", "copy", "row_kernel_4x4", "row_kernel_4x8", "mixed_64",
                         "mixed_128", "mixed_256"});
constexpr auto kGatedProducts = std::to_array<Name>({"one_kernel", "two_kernels"});
constexpr auto kNormVectors = std::to_array<Name>({"one_vector", "two_vectors", "four_vectors"});
constexpr auto kQuantizeVectors = std::to_array<Name>({"four_vectors", "two_vectors"});
constexpr auto kSiluVectors = std::to_array<Name>({"three_vectors", "four_vectors", "none"});
static_assert(kQuantizeVectors.size() == kernels::kQuantizeShapes);
static_assert(kSiluVectors.size() == kernels::kSiluShapes);
constexpr auto kFirstAttentions =
    std::to_array<Name>({"cudnn", "flash", "sdpa", "splitkv", "hopper"});

// A single row meets fp8 weights unquantised, and is the row kernel's with int8 ones.
constexpr std::int64_t kSeveral = 2;

constexpr auto kKernels = std::to_array<TunedKernelInfo>({
    {TunedKernel::linear_fp8, "linear_fp8", kMatrix, kFp8Products, kSeveral},
    {TunedKernel::linear_int8, "linear_int8", kMatrix, kInt8Products, kSeveral},
    {TunedKernel::add_rms_norm, "add_rms_norm", kRow, kNormVectors, 1},
    {TunedKernel::add_rms_norm_e4m3, "add_rms_norm_e4m3", kRow, kNormVectors, 1},
    {TunedKernel::gated_linear, "gated_linear", kGatedMatrix, kGatedProducts, 1},
    {TunedKernel::silu_mul_e4m3, "silu_mul_e4m3", kInner, kSiluVectors, 1},
    {TunedKernel::quantize_rows, "quantize_rows", kRow, kQuantizeVectors, 1},
    {TunedKernel::attention, "attention", kHeads, kFirstAttentions, 1},
});

std::optional<std::string> impossible_row_kernel(std::int64_t rows) {
  if (rows <= kernels::kMostLinearRows) return std::nullopt;
  return fmt::format("row kernels take at most {} rows", kernels::kMostLinearRows);
}

std::optional<std::string> impossible_fp8(const TunedShape& shape, std::int64_t rows,
                                          Fp8Product product) {
  const auto [outputs, inputs, unused] = shape;
  if (row_kernel_shape(product)) return impossible_row_kernel(rows);
  if (outputs % 16 != 0 || inputs % 16 != 0) return "its widths are no multiples of 16";
  if (product == Fp8Product::cublas && exceeds_cublas(rows, outputs, inputs))
    return fmt::format("cublas has no such product of {} rows", rows);
  return std::nullopt;
}

// Of int8_linear: rows of x and of the weights begin, and those of y end, at multiples of 16 bytes.
bool mixed_widths(std::int64_t outputs, std::int64_t inputs) {
  return outputs % 8 == 0 && inputs % 16 == 0;
}

std::optional<std::string> impossible_int8(const TunedShape& shape, std::int64_t rows,
                                           Int8Product product) {
  const auto [outputs, inputs, unused] = shape;
  if (row_kernel_shape(product)) return impossible_row_kernel(rows);
  if (mixed_shape(product) && !mixed_widths(outputs, inputs))
    return "its widths are no multiples of 8 and 16";
  return std::nullopt;
}

std::optional<std::string> impossible_attention(std::int64_t queries, FirstAttention first) {
  if (first != FirstAttention::splitkv || queries <= kMostSplitQueries) return std::nullopt;
  return fmt::format("splitkv takes at most {} queries", kMostSplitQueries);
}

}  // namespace

std::span<const TunedKernelInfo> tuned_kernels() {
  return kKernels;
}

const TunedKernelInfo& info_of(TunedKernel kernel) {
  return *std::ranges::find(kKernels, kernel, &TunedKernelInfo::kernel);
}

bool exceeds_cublas(std::int64_t rows, std::int64_t outputs, std::int64_t inputs) {
  constexpr std::int64_t kLongSum = 4096, kTile = 128, kMultiprocessors = 132;
  const auto tiles = [](std::int64_t size) { return (size + kTile - 1) / kTile; };
  return inputs > kLongSum && tiles(rows) * tiles(outputs) < kMultiprocessors;
}

std::optional<int> row_kernel_shape(Fp8Product product) {
  switch (product) {
    case Fp8Product::row_kernel:
      return 0;
    case Fp8Product::row_kernel_4x4:
      return 1;
    case Fp8Product::row_kernel_4x8:
      return 2;
    case Fp8Product::cublas:
    case Fp8Product::cutlass:
      break;
  }
  return std::nullopt;
}

std::optional<int> row_kernel_shape(Int8Product product) {
  switch (product) {
    case Int8Product::row_kernel:
      return 0;
    case Int8Product::row_kernel_4x4:
      return 1;
    case Int8Product::row_kernel_4x8:
      return 2;
    case Int8Product::copy:
    case Int8Product::mixed_64:
    case Int8Product::mixed_128:
    case Int8Product::mixed_256:
      break;
  }
  return std::nullopt;
}

std::optional<int> mixed_shape(Int8Product product) {
  switch (product) {
    case Int8Product::mixed_64:
      return 0;
    case Int8Product::mixed_128:
      return 1;
    case Int8Product::mixed_256:
      return 2;
    case Int8Product::row_kernel:
    case Int8Product::copy:
    case Int8Product::row_kernel_4x4:
    case Int8Product::row_kernel_4x8:
      break;
  }
  return std::nullopt;
}

Fp8Product usual_fp8_product(std::int64_t rows, std::int64_t outputs, std::int64_t inputs) {
  if (rows <= kernels::kMostLinearRows) return Fp8Product::row_kernel;
  return exceeds_cublas(rows, outputs, inputs) ? Fp8Product::cutlass : Fp8Product::cublas;
}

Int8Product usual_int8_product(std::int64_t rows, std::int64_t outputs, std::int64_t inputs) {
  if (rows <= kernels::kMostLinearRows) return Int8Product::row_kernel;
  const bool mixes = rows >= kFewestMixedRows && mixed_widths(outputs, inputs);
  return mixes ? Int8Product::mixed_256 : Int8Product::copy;
}

GatedProduct usual_gated_product(std::int64_t rows) {
  return rows < kFewestGatedRows ? GatedProduct::two_kernels : GatedProduct::one_kernel;
}

QuantizeVectors usual_quantize_vectors(std::int64_t rows) {
  constexpr std::int64_t kManyRows = 1024;  // fewer are better spread over more threads
  return rows < kManyRows ? QuantizeVectors::two : QuantizeVectors::four;
}

FirstAttention usual_attention(std::int64_t queries) {
  if (queries <= kMostSplitQueries) return FirstAttention::splitkv;
  return queries < kFewQueries ? FirstAttention::flash : FirstAttention::hopper;
}

std::optional<std::string> impossible_choice(TunedKernel kernel, const TunedShape& shape,
                                             std::int64_t rows, int choice) {
  switch (kernel) {
    case TunedKernel::linear_fp8:
      return impossible_fp8(shape, rows, static_cast<Fp8Product>(choice));
    case TunedKernel::linear_int8:
      return impossible_int8(shape, rows, static_cast<Int8Product>(choice));
    case TunedKernel::attention:
      return impossible_attention(rows, static_cast<FirstAttention>(choice));
    case TunedKernel::add_rms_norm:
    case TunedKernel::add_rms_norm_e4m3:
    case TunedKernel::gated_linear:
    case TunedKernel::silu_mul_e4m3:
    case TunedKernel::quantize_rows:
      return std::nullopt;
  }
  return std::nullopt;
}

}  // namespace diptych
