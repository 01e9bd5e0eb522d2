#include "kernels/device_row.cuh"
#include "kernels/layer_norm/layer_norm.h"

namespace diptych::kernels {
namespace {

// Vectors of a row that one thread keeps in registers: a row of either is held, a longer one is
// not.
constexpr int kFew = 2, kMany = 4;
constexpr int kNarrowThreads = 128;  // of a block where each warp takes one row

// The row of a table that is for a row of x, or null.
__device__ __forceinline__ const float* row_of(const LayerNormArgs::Table& table,
                                               const LayerNormArgs::Groups& groups,
                                               std::int64_t row) {
  if (table.rows == nullptr) return nullptr;
  const std::int64_t group = groups.of_row == nullptr ? 0 : groups.of_row[row];
  if (group < 0 || group >= groups.count) __trap();
  return table.rows + group * table.stride;
}

// A vector that is read once: it does not take the place of tables in the nearest cache.
template <typename T, int kCount>
__device__ __forceinline__ Vector<T, kCount> load_once(const T* from) {
  if constexpr (sizeof(T) * kCount == kVectorBytes) {
    Vector<T, kCount> value;
    uint4& words = *reinterpret_cast<uint4*>(value.at);
    asm volatile("ld.global.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(words.x), "=r"(words.y), "=r"(words.z), "=r"(words.w)
                 : "l"(__cvta_generic_to_global(from))
                 : "memory");
    return value;
  } else {
    return load<T, kCount>(from);
  }
}

// One row's pointers.
template <typename T>
struct Row {
  const T* x;
  const T* delta;     // or null
  T* sum;             // with delta
  const float* gate;  // or null
};

template <typename T>
__device__ __forceinline__ Row<T> make_row(const LayerNormArgs& args, std::int64_t row) {
  Row<T> made = {static_cast<const T*>(args.x) + row * args.x_stride, nullptr, nullptr, nullptr};
  if (args.delta != nullptr) {
    made.delta = static_cast<const T*>(args.delta) + row * args.delta_stride;
    made.sum = static_cast<T*>(args.sum) + row * args.sum_stride;
    made.gate = row_of(args.gate, args.gate_groups, row);
  }
  return made;
}

// The row's vector of x at `at`, or x + gate * delta, rounded and stored to `sum`. The _rn product
// and sum keep the compiler from fusing them: the reference rounds both.
template <typename T, int kCount>
__device__ __forceinline__ Vector<T, kCount> summed(const Row<T>& row, const Vector<T, kCount>& x,
                                                    const Vector<T, kCount>& delta,
                                                    std::int64_t at) {
  if (row.delta == nullptr) return x;
  float sums[kCount];
  if (row.gate == nullptr) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) sums[i] = __fadd_rn(widen(x.at[i]), widen(delta.at[i]));
  } else {
    const Vector<float, kCount> gate = load<float, kCount>(row.gate + at);
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      sums[i] = __fadd_rn(widen(x.at[i]), __fmul_rn(widen(delta.at[i]), gate.at[i]));
    }
  }
  const Vector<T, kCount> value = round_all<T, kCount>(sums);
  store<T, kCount>(row.sum + at, value);
  return value;
}

struct Statistics {
  float mean, scale;
};

// `each(body)` calls body(vector) for every vector of the thread, twice the same.
template <typename T, int kCount, typename Each>
__device__ __forceinline__ Statistics statistics_of(const LayerNormArgs& args, float sum,
                                                    const Each& each) {
  const auto width = static_cast<float>(args.width);
  const float mean = join_row<Sum>(sum, 0) / width;
  float squares = 0;
  each([&](const Vector<T, kCount>& value) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      const float apart = widen(value.at[i]) - mean;
      squares += apart * apart;
    }
  });
  return {mean, rsqrtf(join_row<Sum>(squares, 1) / width + args.eps)};
}

template <typename T, int kCount>
__device__ __forceinline__ Vector<T, kCount> normed(const Vector<T, kCount>& value,
                                                    const Statistics& of, float base,
                                                    const float* factor, const float* offset) {
  const Vector<float, kCount> f = load<float, kCount>(factor), o = load<float, kCount>(offset);
  float results[kCount];
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    const float unit = (widen(value.at[i]) - of.mean) * of.scale;
    results[i] = __fadd_rn(__fmul_rn(unit, base + f.at[i]), o.at[i]);
  }
  return round_all<T, kCount>(results);
}

template <typename T, bool kQuantised>
__device__ __forceinline__ RowOut out_of(const LayerNormArgs& args, std::int64_t row) {
  if constexpr (kQuantised)
    return {static_cast<__nv_fp8_e4m3*>(args.y) + row * args.y_stride, args.scales + row};
  return {static_cast<T*>(args.y) + row * args.y_stride, nullptr};
}

// blockDim.x threads (a multiple of 32) per row, blockDim.y rows per block (more than one only
// where blockDim.x is 32). kHeld vectors per thread cover the row, or it is 0.
template <typename T, int kCount, int kHeld, bool kQuantised>
__global__ void __launch_bounds__(kMaxRowThreads) layer_norm_kernel(const LayerNormArgs args) {
  const std::int64_t at_row = static_cast<std::int64_t>(blockIdx.x) * blockDim.y + threadIdx.y;
  if (at_row >= args.rows) return;  // whole warps leave together
  const Row<T> row = make_row<T>(args, at_row);
  const Walk<kCount, kHeld> walk{static_cast<std::int64_t>(threadIdx.x) * kCount,
                                 static_cast<std::int64_t>(blockDim.x) * kCount, args.width};
  float sum = 0;
  constexpr int kPlaces = kHeld > 0 ? kHeld : 1;
  Vector<T, kCount> held[kPlaces], deltas[kPlaces];
  const auto load_at = [&](int i, std::int64_t at) {
    held[i] = load_once<T, kCount>(row.x + at);
    if (row.delta != nullptr) deltas[i] = load_once<T, kCount>(row.delta + at);
  };
  // What is held is all on its way before the first sum is stored.
  if constexpr (kHeld > 0) walk(load_at);
  walk([&](int i, std::int64_t at) {
    if constexpr (kHeld == 0) load_at(i, at);
    held[i] = summed(row, held[i], deltas[i], at);
#pragma unroll
    for (int k = 0; k < kCount; ++k) sum += widen(held[i].at[k]);
  });
  if (args.y == nullptr) return;

  const T* source = row.delta != nullptr ? row.sum : row.x;  // a thread rereads its own writes
  const auto value_at = [&](int i, std::int64_t at) {
    if constexpr (kHeld > 0) return held[i];
    return load<T, kCount>(source + at);
  };
  const Statistics statistics = statistics_of<T, kCount>(args, sum, [&](const auto& body) {
    walk([&](int i, std::int64_t at) { body(value_at(i, at)); });
  });
  const float *factor = row_of(args.factor, args.groups, at_row),
              *offset = row_of(args.offset, args.groups, at_row);
  const auto normed_at = [&](int i, std::int64_t at) {
    return normed<T, kCount>(value_at(i, at), statistics, args.base, factor + at, offset + at);
  };
  write_row<T, kCount, kHeld, kQuantised>(out_of<T, kQuantised>(args, at_row), walk, held,
                                          normed_at, 0);
}

template <typename T, int kCount, int kHeld>
void launch(const LayerNormArgs& args, const dim3& grid, const dim3& block, CUstream_st* stream) {
  if (args.scales != nullptr) {
    layer_norm_kernel<T, kCount, kHeld, true><<<grid, block, 0, stream>>>(args);
  } else {
    layer_norm_kernel<T, kCount, kHeld, false><<<grid, block, 0, stream>>>(args);
  }
}

template <typename T, int kCount>
void launch(const LayerNormArgs& args, CUstream_st* stream) {
  const std::int64_t vectors = (args.width + kCount - 1) / kCount;
  // Narrow rows: a warp each. Wide rows: a block each, kFew vectors a thread while 1024 threads
  // last.
  std::int64_t threads = kWarp;
  constexpr std::int64_t kWarpVectors = static_cast<std::int64_t>(kWarp) * kFew;
  if (vectors > kWarp * kMany) threads = (vectors + kWarpVectors - 1) / kWarpVectors * kWarp;
  if (threads > kMaxRowThreads) threads = kMaxRowThreads;
  const dim3 block(static_cast<unsigned>(threads),
                   static_cast<unsigned>(threads == kWarp ? kNarrowThreads / kWarp : 1));
  const dim3 grid(static_cast<unsigned>((args.rows + block.y - 1) / block.y));
  if (vectors <= threads * kFew) {
    launch<T, kCount, kFew>(args, grid, block, stream);
  } else if (vectors <= threads * kMany) {
    launch<T, kCount, kMany>(args, grid, block, stream);
  } else {
    launch<T, kCount, 0>(args, grid, block, stream);
  }
}

bool vectorised(const LayerNormArgs& args) {
  const auto table_fits = [](const LayerNormArgs::Table& table) {
    return aligned(table.rows) && vectors_fit(DType::f32, table.stride);
  };
  // A row of codes is stored in vectors of as many bytes as x's vectors have elements.
  return aligned(args.x) && aligned(args.delta) && aligned(args.sum) && aligned(args.y) &&
         vectors_fit(args.dtype, args.width) && vectors_fit(args.dtype, args.x_stride) &&
         vectors_fit(args.dtype, args.delta_stride) && vectors_fit(args.dtype, args.sum_stride) &&
         vectors_fit(args.dtype, args.y_stride) && table_fits(args.gate) &&
         table_fits(args.factor) && table_fits(args.offset);
}

}  // namespace

const char* layer_norm_unsupported(const LayerNormArgs& args) {
  if (args.width < 1) return "the width is below 1";
  if (args.rows < 0 || args.rows > kMaxBlocks) return "more than 2^31 - 1 rows";
  if (args.rows == 0) return nullptr;  // whose pointers are null
  if ((args.delta == nullptr) != (args.sum == nullptr)) return "delta and sum come together or not";
  if (args.y == nullptr && (args.delta == nullptr || args.scales != nullptr))
    return "without y there is a sum, and nothing else";
  if (args.y != nullptr && (args.factor.rows == nullptr || args.offset.rows == nullptr))
    return "with y there are factors and offsets";
  return nullptr;
}

const char* layer_norm(const LayerNormArgs& args, CUstream_st* stream) {
  if (const char* reason = layer_norm_unsupported(args)) return reason;
  if (args.rows == 0) return nullptr;
  return launch_typed(args.dtype, vectorised(args),
                      [&]<typename T, int kCount>() { launch<T, kCount>(args, stream); });
}

}  // namespace diptych::kernels
