#include "kernels/device_gelu.cuh"
#include "kernels/device_quantize.cuh"
#include "kernels/quantize_rows/quantize_rows.h"

namespace diptych::kernels {
namespace {

constexpr int kHeld = 4;             // vectors of a row that one thread keeps in registers
constexpr int kNarrowThreads = 128;  // of a block where each warp takes one row

// blockDim.x threads (a multiple of 32) per row, blockDim.y rows per block (more than one only
// where blockDim.x is 32). kInRegisters: kHeld vectors per thread cover the row.
template <typename T, typename Q, int kCount, bool kInRegisters, Activation kActivation>
__global__ void __launch_bounds__(kMaxRowThreads)
    quantize_rows_kernel(const QuantizeRowsArgs args, float limit) {
  const std::int64_t row = static_cast<std::int64_t>(blockIdx.x) * blockDim.y + threadIdx.y;
  if (row >= args.rows) return;  // whole warps leave together
  const T* x = static_cast<const T*>(args.x) + row * args.x_stride;
  Q* values = static_cast<Q*>(args.values) + row * args.width;
  const std::int64_t first = static_cast<std::int64_t>(threadIdx.x) * kCount;
  const std::int64_t step = static_cast<std::int64_t>(blockDim.x) * kCount;

  const auto value_at = [&](std::int64_t at) {
    return activated<kActivation>(load<T, kCount>(x + at));
  };
  unsigned most = 0;
  Vector<T, kCount> held[kInRegisters ? kHeld : 1];
  if constexpr (kInRegisters) {
#pragma unroll
    for (int i = 0; i < kHeld; ++i) {
      const std::int64_t at = first + i * step;
      if (at >= args.width) continue;
      held[i] = value_at(at);
      most = most_of(most, held[i]);
    }
  } else {
    for (std::int64_t at = first; at < args.width; at += step) {
      most = most_of(most, value_at(at));
    }
  }
  const float scale = scale_of_row(most, limit);
  if (threadIdx.x == 0) args.scales[row] = scale;
  const float inverse = __frcp_rn(scale);

  if constexpr (kInRegisters) {
#pragma unroll
    for (int i = 0; i < kHeld; ++i) {
      const std::int64_t at = first + i * step;
      if (at < args.width) store_quantized(values + at, held[i], inverse);
    }
  } else {
    for (std::int64_t at = first; at < args.width; at += step) {
      store_quantized(values + at, value_at(at), inverse);
    }
  }
}

template <typename T, typename Q, int kCount, Activation kActivation>
void launch(const QuantizeRowsArgs& args, CUstream_st* stream) {
  const std::int64_t vectors = (args.width + kCount - 1) / kCount;
  // Narrow rows: a warp each. Wide rows: a block each, of two vectors a thread while 1024 threads
  // last, or of as few threads as hold them, which have the more on their way.
  const std::int64_t each = args.shape == 0 ? kHeld : 2;
  std::int64_t threads = kWarp;
  if (vectors > kWarp * kHeld) threads = (vectors + each * kWarp - 1) / (each * kWarp) * kWarp;
  if (threads > kMaxRowThreads) threads = kMaxRowThreads;
  const dim3 block(static_cast<unsigned>(threads),
                   static_cast<unsigned>(threads == kWarp ? kNarrowThreads / kWarp : 1));
  const dim3 grid(static_cast<unsigned>((args.rows + block.y - 1) / block.y));
  const float limit = stored_limit(args.stored);
  if (vectors <= threads * kHeld) {
    quantize_rows_kernel<T, Q, kCount, true, kActivation><<<grid, block, 0, stream>>>(args, limit);
  } else {
    quantize_rows_kernel<T, Q, kCount, false, kActivation><<<grid, block, 0, stream>>>(args, limit);
  }
}

}  // namespace

const char* quantize_rows_unsupported(const QuantizeRowsArgs& args) {
  if (args.width < 1) return "the width is below 1";
  if (args.rows < 0) return "the number of rows is negative";
  if (args.rows > kMaxBlocks) return "more than 2^31 - 1 rows";
  if (args.stored == Stored::plain) return "the stored type is no quantised one";
  if (args.activation != Activation::none && args.stored != Stored::e4m3)
    return "activations are of what becomes e4m3";
  if (args.shape < 0 || args.shape >= kQuantizeShapes) return "there is no such shape";
  return nullptr;
}

const char* quantize_rows(const QuantizeRowsArgs& args, CUstream_st* stream) {
  if (const char* reason = quantize_rows_unsupported(args)) return reason;
  if (args.rows == 0) return nullptr;
  // Vectors of x are 16 bytes, of the values 4 or 8.
  const bool vectorised = aligned(args.x) && aligned(args.values) &&
                          vectors_fit(args.dtype, args.width) &&
                          vectors_fit(args.dtype, args.x_stride);
  return launch_typed(args.dtype, vectorised, [&]<typename T, int kCount>() {
    using E4m3 = __nv_fp8_e4m3;
    switch (args.activation) {
      case Activation::gelu:
        return launch<T, E4m3, kCount, Activation::gelu>(args, stream);
      case Activation::gelu_tanh:
        return launch<T, E4m3, kCount, Activation::gelu_tanh>(args, stream);
      case Activation::none:
        break;
    }
    with_device_stored(args.stored, [&](auto stored) {
      launch<T, decltype(stored), kCount, Activation::none>(args, stream);
    });
  });
}

}  // namespace diptych::kernels
