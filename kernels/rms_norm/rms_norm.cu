#include "kernels/device_chain.cuh"
#include "kernels/device_row.cuh"
#include "kernels/rms_norm/rms_norm.h"
#include "kernels/row_sets.h"

namespace diptych::kernels {
namespace {

// Vectors of a row that one thread keeps in registers: a row of either is held, a longer one is
// not.
constexpr int kFew = 2, kMany = 4;
constexpr int kNarrowThreads = 128;  // of a block where each warp takes one row
// Rows that a block has on their way, where there are more rows than this many blocks a
// multiprocessor.
constexpr int kStages = 3, kFetchingBlocks = 4;
constexpr std::int64_t kStageBytes = 47 * 1024;  // of a block without asking for more

// One row's pointers.
template <typename T>
struct Row {
  const T* x;
  const T* delta;  // or null
  T* sum;          // with delta
  const T* weight;
};

template <typename T>
__device__ __forceinline__ Row<T> make_row(const RmsNormArgs& args, const RoutedRow& place) {
  Row<T> row;
  row.x = static_cast<const T*>(args.x) + place.row * args.x_stride;
  row.delta = nullptr;
  row.sum = nullptr;
  row.weight = static_cast<const T*>(place.in_first ? args.sets[0].weight : args.sets[1].weight);
  if (args.delta != nullptr) {
    row.delta = static_cast<const T*>(args.delta) + place.row * args.delta_stride;
    row.sum = static_cast<T*>(args.sum) + place.row * args.sum_stride;
  }
  return row;
}

// The row's vector of x at `at`, or x + delta, rounded and stored to `sum`.
template <typename T, int kCount>
__device__ __forceinline__ Vector<T, kCount> summed(const Row<T>& row, const Vector<T, kCount>& x,
                                                    const Vector<T, kCount>& delta,
                                                    std::int64_t at) {
  if (row.delta == nullptr) return x;
  float sums[kCount];
#pragma unroll
  for (int i = 0; i < kCount; ++i) sums[i] = widen(x.at[i]) + widen(delta.at[i]);
  const Vector<T, kCount> value = round_all<T, kCount>(sums);
  store<T, kCount>(row.sum + at, value);
  return value;
}

template <typename T, int kCount>
__device__ __forceinline__ float sum_squares(const Vector<T, kCount>& value) {
  float sum = 0;
#pragma unroll
  for (int i = 0; i < kCount; ++i) sum += widen(value.at[i]) * widen(value.at[i]);
  return sum;
}

template <typename T, int kCount>
__device__ __forceinline__ Vector<T, kCount> normed(const Vector<T, kCount>& value,
                                                    const Vector<T, kCount>& weight, float scale) {
  float units[kCount];
#pragma unroll
  for (int i = 0; i < kCount; ++i) units[i] = __fmul_rn(widen(value.at[i]), scale);
  return products(round_all<T, kCount>(units), weight);
}

__device__ __forceinline__ float scale_of_norm(const RmsNormArgs& args, float squares, int turn) {
  const float mean = join_row<Sum>(squares, turn) / static_cast<float>(args.width);
  return rsqrtf(mean + args.eps);
}

template <typename T, bool kQuantised>
__device__ __forceinline__ RowOut out_of(const RmsNormArgs& args, std::int64_t row) {
  if constexpr (kQuantised)
    return {static_cast<__nv_fp8_e4m3*>(args.y) + row * args.y_stride, args.scales + row};
  return {static_cast<T*>(args.y) + row * args.y_stride, nullptr};
}

// blockDim.x threads (a multiple of 32) per row, blockDim.y rows per block (more than one only
// where blockDim.x is 32). kHeld vectors per thread cover the row, or it is 0.
template <typename T, int kCount, int kHeld, bool kQuantised>
__global__ void __launch_bounds__(kMaxRowThreads) rms_norm_kernel(const RmsNormArgs args) {
  let_next_start();
  const std::int64_t item = static_cast<std::int64_t>(blockIdx.x) * blockDim.y + threadIdx.y;
  const RowSet &first_rows = args.sets[0].rows, &second_rows = args.sets[1].rows;
  if (item >= first_rows.count + second_rows.count) return;  // whole warps leave together
  const bool listed = first_rows.index != nullptr || second_rows.index != nullptr;
  if (listed) await_predecessors();
  const RoutedRow place = routed_row(first_rows, second_rows, item, args.rows);
  const Row<T> row = make_row<T>(args, place);
  const Walk<kCount, kHeld> walk{static_cast<std::int64_t>(threadIdx.x) * kCount,
                                 static_cast<std::int64_t>(blockDim.x) * kCount, args.width};

  // The sum of squares. Where there are registers for that, everything is on its way before the
  // first sum is stored, and weights before the row is there.
  constexpr bool kAtOnce = kHeld == kFew;
  float squares = 0;
  Vector<T, kCount> held[kHeld > 0 ? kHeld : 1], deltas[kAtOnce ? kHeld : 1],
      weights[kAtOnce ? kHeld : 1];
  const auto load_at = [&](int i, std::int64_t at) {
    held[i] = load<T, kCount>(row.x + at);
    if (row.delta != nullptr) deltas[kAtOnce ? i : 0] = load<T, kCount>(row.delta + at);
  };
  if constexpr (kAtOnce)
    walk([&](int i, std::int64_t at) { weights[i] = load<T, kCount>(row.weight + at); });
  if (!listed) await_predecessors();
  if constexpr (kAtOnce) walk(load_at);
  walk([&](int i, std::int64_t at) {
    if constexpr (!kAtOnce) load_at(i, at);
    held[i] = summed(row, held[i], deltas[kAtOnce ? i : 0], at);
    squares += sum_squares(held[i]);
  });
  const float scale = scale_of_norm(args, squares, 0);

  const T* source = row.delta != nullptr ? row.sum : row.x;  // a thread rereads its own writes
  const auto normed_at = [&](int i, std::int64_t at) {
    Vector<T, kCount> value, weight;
    if constexpr (kHeld > 0) {
      value = held[i];
    } else {
      value = load<T, kCount>(source + at);
    }
    if constexpr (kAtOnce) {
      weight = weights[i];
    } else {
      weight = load<T, kCount>(row.weight + at);
    }
    return normed(value, weight, scale);
  };
  write_row<T, kCount, kHeld, kQuantised>(out_of<T, kQuantised>(args, place.row), walk, held,
                                          normed_at, 0);
}

// The same to the bit for many rows, of kFew vectors a thread: a block takes every gridDim.x-th row
// and has the next ones on their way to shared memory while it works. Not for rows that are
// quantised: those wait twice for each other, and more blocks at once hide that better.
template <typename T, int kCount>
__global__ void __launch_bounds__(kMaxRowThreads) rms_norm_fetched_kernel(const RmsNormArgs args) {
  extern __shared__ uint4 stages[];  // [kStages, x and delta, vectors]
  const RowSet &first_rows = args.sets[0].rows, &second_rows = args.sets[1].rows;
  const std::int64_t items = first_rows.count + second_rows.count, step = gridDim.x;
  const Walk<kCount, kFew> walk{static_cast<std::int64_t>(threadIdx.x) * kCount,
                                static_cast<std::int64_t>(blockDim.x) * kCount, args.width};
  const auto row_of = [&](std::int64_t item) {
    return routed_row(first_rows, second_rows, item, args.rows);
  };
  const auto x_of = [&](int stage) {  // delta is `width` further on
    return reinterpret_cast<T*>(stages) + 2 * stage * args.width;
  };
  const auto fetch_row = [&](int stage, std::int64_t item) {
    if (item < items) {
      const Row<T> row = make_row<T>(args, row_of(item));
      walk([&](int, std::int64_t at) {
        T* to = x_of(stage) + at;
        fetch(reinterpret_cast<uint4*>(to), row.x + at, true);
        if (row.delta == nullptr) return;
        fetch(reinterpret_cast<uint4*>(to + args.width), row.delta + at, true);
      });
    }
    end_of_fetches();
  };

  for (int stage = 0; stage < kStages; ++stage) fetch_row(stage, blockIdx.x + stage * step);
  int stage = 0, turn = 0;
  for (std::int64_t item = blockIdx.x; item < items; item += step) {
    const RoutedRow place = row_of(item);
    const Row<T> row = make_row<T>(args, place);
    Vector<T, kCount> held[kFew], weights[kFew];
    walk([&](int i, std::int64_t at) { weights[i] = load<T, kCount>(row.weight + at); });
    await_fetches<kStages - 1>();
    float squares = 0;
    walk([&](int i, std::int64_t at) {
      const T* x = x_of(stage) + at;
      held[i] = summed(row, load<T, kCount>(x), load<T, kCount>(x + args.width), at);
      squares += sum_squares(held[i]);
    });
    fetch_row(stage, item + kStages * step);
    const float scale = scale_of_norm(args, squares, turn);
    const auto normed_at = [&](int i, std::int64_t) { return normed(held[i], weights[i], scale); };
    write_row<T, kCount, kFew, false>(out_of<T, false>(args, place.row), walk, held, normed_at,
                                      turn);
    stage = stage + 1 == kStages ? 0 : stage + 1;
    turn = 1 - turn;
  }
}

std::int64_t routed_rows(const RmsNormArgs& args) {
  return args.sets[0].rows.count + args.sets[1].rows.count;
}

template <typename T, int kCount, int kHeld>
void launch(const RmsNormArgs& args, const dim3& grid, const dim3& block, CUstream_st* stream) {
  const auto kernel = args.scales != nullptr ? rms_norm_kernel<T, kCount, kHeld, true>
                                             : rms_norm_kernel<T, kCount, kHeld, false>;
  launch_chained({routed_rows(args) <= kChainedRows}, kernel, grid, block, 0, stream, args);
}

template <typename T, int kCount>
void launch(const RmsNormArgs& args, CUstream_st* stream) {
  const std::int64_t vectors = (args.width + kCount - 1) / kCount;
  // Narrow rows: a warp each. Wide rows: a block each, thread_vectors a thread while 1024 threads
  // last.
  std::int64_t threads = kWarp;
  const std::int64_t warp_vectors = static_cast<std::int64_t>(kWarp) * args.thread_vectors;
  if (vectors > kWarp * kMany) threads = (vectors + warp_vectors - 1) / warp_vectors * kWarp;
  if (threads > kMaxRowThreads) threads = kMaxRowThreads;
  const dim3 block(static_cast<unsigned>(threads),
                   static_cast<unsigned>(threads == kWarp ? kNarrowThreads / kWarp : 1));
  const dim3 grid(static_cast<unsigned>((routed_rows(args) + block.y - 1) / block.y));
  if constexpr (kInPairs<T, kCount>) {
    const std::int64_t bytes = kStages * 2 * vectors * kVectorBytes;
    if (args.shape == 0 && args.scales == nullptr && threads > kWarp && vectors <= threads * kFew &&
        bytes <= kStageBytes) {
      const int blocks = kFetchingBlocks * device_attribute(cudaDevAttrMultiProcessorCount);
      if (routed_rows(args) > blocks) {
        rms_norm_fetched_kernel<T, kCount>
            <<<static_cast<unsigned>(blocks), block, static_cast<std::size_t>(bytes), stream>>>(
                args);
        return;
      }
    }
  }
  if (vectors <= threads * kFew) {
    launch<T, kCount, kFew>(args, grid, block, stream);
  } else if (vectors <= threads * kMany) {
    launch<T, kCount, kMany>(args, grid, block, stream);
  } else {
    launch<T, kCount, 0>(args, grid, block, stream);
  }
}

bool vectorised(const RmsNormArgs& args) {
  // A row of codes is stored in vectors of as many bytes as x's vectors have elements.
  const bool plain =
      aligned(args.x) && aligned(args.sets[0].weight) && aligned(args.sets[1].weight) &&
      aligned(args.y) && vectors_fit(args.dtype, args.width) &&
      vectors_fit(args.dtype, args.x_stride) && vectors_fit(args.dtype, args.y_stride);
  if (!plain || args.delta == nullptr) return plain;
  return aligned(args.delta) && aligned(args.sum) && vectors_fit(args.dtype, args.delta_stride) &&
         vectors_fit(args.dtype, args.sum_stride);
}

}  // namespace

const char* rms_norm_unsupported(const RmsNormArgs& args) {
  if (args.width < 1) return "the width is below 1";
  if (args.rows > kMaxBlocks) return "more than 2^31 - 1 rows";
  if (args.thread_vectors != 1 && args.thread_vectors != kFew && args.thread_vectors != kMany) {
    return "a thread takes 1, 2 or 4 vectors";
  }
  if ((args.delta == nullptr) != (args.sum == nullptr)) return "delta and sum come together or not";
  if (args.shape < 0 || args.shape >= kNormShapes) return "there is no such shape";
  return row_sets_unsupported(args.sets[0].rows, args.sets[1].rows, args.rows);
}

const char* rms_norm(const RmsNormArgs& args, CUstream_st* stream) {
  if (const char* reason = rms_norm_unsupported(args)) return reason;
  if (routed_rows(args) == 0) return nullptr;
  return launch_typed(args.dtype, vectorised(args),
                      [&]<typename T, int kCount>() { launch<T, kCount>(args, stream); });
}

}  // namespace diptych::kernels
