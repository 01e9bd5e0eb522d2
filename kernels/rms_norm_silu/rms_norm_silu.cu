#include <algorithm>
#include <type_traits>

#include "kernels/device_fetch.cuh"
#include "kernels/device_silu.cuh"
#include "kernels/device_vector.cuh"
#include "kernels/rms_norm_silu/rms_norm_silu.h"

namespace diptych::kernels {
namespace {

constexpr int kThreads = 128, kBlocksPerMultiprocessor = 32;
constexpr int kElements = 8;  // of a vector
// Of a row, and vectors of it that a thread holds.
constexpr int kFewestLanes = 4, kMostVectors = 4;

// What is summed, as far as a kernel is compiled for it; `any` asks at run time.
enum class Sources { map, part, map_and_part, any };
// The most threads of a row in a kernel for `any`: several parts have narrow rows.
constexpr int kMostLanesOfAny = 8;

// T: of maps, P: of parts. The vectors of a thread's part of a row.
template <typename T, typename P, Sources kSources, int kVectors>
struct Loaded {
  static constexpr bool kMap = kSources != Sources::part;
  static constexpr int kParts = kSources == Sources::any   ? kNormParts
                                : kSources == Sources::map ? 0
                                                           : 1;
  Vector<T, kElements> x[kMap ? kVectors : 1];
  Vector<P, kElements> parts[kParts > 0 ? kParts : 1][kVectors];
};

// The hardware's silu is some float32 steps off, which 16 bits hide. Beyond near_silu's range it is
// v or -0, as the power is then 0 or infinite.
template <typename P>
__device__ __forceinline__ float silu_of(float value) {
  if constexpr (std::is_same_v<P, float>) {
    return value / (1.0f + expf(-value));
  } else {
    return near_silu(value);
  }
}

__device__ __forceinline__ float scale_of_norm(const RmsNormSiluArgs& args, float squares,
                                               int lanes) {
  return rsqrtf(sum_lanes(squares, lanes) / static_cast<float>(args.width) + args.eps);
}

template <typename T, int kCount>
__device__ __forceinline__ float sum_squares(const Vector<T, kCount>& values) {
  float squares = 0;
#pragma unroll
  for (int i = 0; i < kCount; ++i) squares += widen(values.at[i]) * widen(values.at[i]);
  return squares;
}

// y of a part of a row; weight: null, or for that part.
template <typename T, typename P, int kCount>
__device__ __forceinline__ Vector<P, kCount> finish(const Vector<T, kCount>& sum, float scale,
                                                    const Vector<T, kCount>* weight) {
  float values[kCount];
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    values[i] = widen(sum.at[i]);
    if (weight != nullptr)
      values[i] = silu_of<P>(__fmul_rn(__fmul_rn(values[i], scale), widen(weight->at[i])));
  }
  return round_all<P, kCount>(values);
}

// kLanes threads hold a row in kVectors vectors each. `blocks` blocks take the rows of a frame in
// turn: pointers only move on, and the weight stays in registers. With pairs they take each row of
// all frames.
template <typename T, typename P, Sources kSources, int kLanes, int kVectors, bool kPairs>
__global__ void __launch_bounds__(kThreads)
    held_rows_kernel(const RmsNormSiluArgs args, unsigned blocks) {
  using Row = Loaded<T, P, kSources, kVectors>;
  using Made = Vector<P, kElements>[kVectors];
  constexpr int kStep = kLanes * kElements;
  const int lane = static_cast<int>(threadIdx.x) % kLanes;
  const unsigned frame = blockIdx.x / blocks, block = blockIdx.x - frame * blocks;
  constexpr unsigned kAtOnce = kThreads / kLanes;
  const auto frame_rows = static_cast<unsigned>(args.frame_rows);
  const std::int64_t before = static_cast<std::int64_t>(frame) * frame_rows;
  const auto rows = static_cast<unsigned>(min(args.rows - before, args.frame_rows));
  unsigned row = block * kAtOnce + threadIdx.x / kLanes;
  const int column = lane * kElements;
  const int width = static_cast<int>(args.width);
  bool works = false;  // there is a row
  const auto for_vectors = [&](const auto& body) {
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      if (works && column + i * kStep < width) body(i, i * kStep);
    }
  };

  Vector<T, kElements> weight[kVectors];
  if (args.weight != nullptr) {
    works = true;
    for_vectors([&](int i, int step) {
      weight[i] = load<T, kElements>(static_cast<const T*>(args.weight) + column + step);
    });
  }
  const auto load_row = [&](Row& loaded, std::int64_t at) {
    for_vectors([&](int i, int step) {
      const std::int64_t from = at + step;
      if constexpr (Row::kMap) {
        if (kSources != Sources::any || args.x != nullptr)
          loaded.x[i] = load<T, kElements>(static_cast<const T*>(args.x) + from);
      }
#pragma unroll
      for (int part = 0; part < Row::kParts; ++part) {
        if (kSources == Sources::any && part >= args.part_count) continue;
        loaded.parts[part][i] = load<P, kElements>(static_cast<const P*>(args.parts[part]) + from);
      }
    });
  };
  // By all lanes of a warp together.
  const auto finish_row = [&](Made& made, const Row& loaded, std::int64_t at) {
    Vector<T, kElements> held[kVectors];
    float squares = 0;
    for_vectors([&](int i, int step) {
      float sums[kElements];
#pragma unroll
      for (int j = 0; j < kElements; ++j) {
        sums[j] = 0;
        if constexpr (Row::kMap) {
          if (kSources != Sources::any || args.x != nullptr) sums[j] = widen(loaded.x[i].at[j]);
        }
#pragma unroll
        for (int part = 0; part < Row::kParts; ++part) {
          if (kSources == Sources::any && part >= args.part_count) continue;
          sums[j] += widen(loaded.parts[part][i].at[j]);
        }
      }
      held[i] = round_all<T, kElements>(sums);
      if (args.sum != nullptr) store<T, kElements>(static_cast<T*>(args.sum) + at + step, held[i]);
      squares += sum_squares(held[i]);
    });
    if (args.y == nullptr) return;
    const float scale = scale_of_norm(args, squares, kLanes);
    for_vectors([&](int i, int) {
      made[i] = finish<T, P>(held[i], scale, args.weight == nullptr ? nullptr : &weight[i]);
    });
  };

  const std::int64_t in_frame = static_cast<std::int64_t>(row) * width + column;
  std::int64_t at = before * width + in_frame;  // in packed maps
  P* y = static_cast<P*>(args.y) + frame * args.y_frame_stride + in_frame;
  const std::int64_t turn = static_cast<std::int64_t>(blocks) * kAtOnce * width;
  // All lanes of a warp sum together, so that all of them take part to the last row of any.
  const unsigned ahead = threadIdx.x % kWarp / kLanes;
  if constexpr (!kPairs) {
    for (; row - ahead < rows; row += blocks * kAtOnce, at += turn, y += turn) {
      works = row < rows;
      Row loaded;
      load_row(loaded, at);
      Made made;
      finish_row(made, loaded, at);
      if (args.y == nullptr) continue;
      for_vectors([&](int i, int step) { store<P, kElements>(y + step, made[i]); });
    }
  } else {
    const std::int64_t of_frame = static_cast<std::int64_t>(frame_rows) * width;
    const int pairs = static_cast<int>(args.rows / frame_rows / 2);
    P* own = static_cast<P*>(args.before) + in_frame;
    for (; row - ahead < rows; row += blocks * kAtOnce, at += turn, y += turn, own += turn) {
      works = row < rows;
      Made earlier[2];
      for_vectors([&](int i, int step) {
#pragma unroll
        for (int f = 0; f < 2; ++f)
          earlier[f][i] = load<P, kElements>(own + f * args.before_frame_stride + step);
      });
      for (int pair = 0; pair < pairs; ++pair) {
        Row loaded[2];
        Made later[2];
        const std::int64_t first = at + 2 * pair * of_frame;
        load_row(loaded[0], first);
        load_row(loaded[1], first + of_frame);
        finish_row(later[0], loaded[0], first);
        finish_row(later[1], loaded[1], first + of_frame);
        for_vectors([&](int i, int step) {
          const auto put = [&](int map, const auto& a, const auto& b, float sign) {
            float sums[kElements];
#pragma unroll
            for (int j = 0; j < kElements; ++j) sums[j] = widen(a.at[j]) + sign * widen(b.at[j]);
            store<P, kElements>(y + (map * pairs + pair) * args.y_frame_stride + step,
                                round_all<P, kElements>(sums));
          };
          put(0, earlier[1][i], later[0][i], 1);
          put(1, later[0][i], earlier[1][i], -1);
          put(2, earlier[0][i], later[0][i], -1);
          put(3, later[1][i], earlier[1][i], -1);
          earlier[0][i] = later[0][i];
          earlier[1][i] = later[1][i];
        });
      }
      for_vectors([&](int i, int step) {
#pragma unroll
        for (int f = 0; f < 2; ++f)
          store<P, kElements>(own + f * args.before_frame_stride + step, earlier[f][i]);
      });
    }
  }
}

// Rows too wide to be held, or not in vectors: an element at a time, read twice. A warp takes a
// row.
template <typename T, typename P>
__global__ void __launch_bounds__(kThreads) any_row_kernel(const RmsNormSiluArgs args) {
  const std::int64_t row = blockIdx.x * std::int64_t{kThreads / kWarp} + threadIdx.x / kWarp;
  if (row >= args.rows) return;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const std::int64_t first = row * args.width, frame = row / args.frame_rows;
  const auto sum_at = [&](std::int64_t at) {
    float sum = args.x == nullptr ? 0 : widen(static_cast<const T*>(args.x)[first + at]);
    for (int part = 0; part < args.part_count; ++part)
      sum += widen(static_cast<const P*>(args.parts[part])[first + at]);
    return Vector<T, 1>{round_to<T>(sum)};
  };
  T* const sums = args.sum == nullptr ? nullptr : static_cast<T*>(args.sum) + first;
  float squares = 0;
  // What is stored may be x: it is what the second pass reads.
  for (std::int64_t at = lane; at < args.width; at += kWarp) {
    const Vector<T, 1> sum = sum_at(at);
    if (sums != nullptr) sums[at] = sum.at[0];
    squares += sum_squares(sum);
  }
  const float scale = scale_of_norm(args, squares, kWarp);
  if (args.y == nullptr) return;
  P* const y = static_cast<P*>(args.y) + frame * args.y_frame_stride +
               (row - frame * args.frame_rows) * args.width;
  for (std::int64_t at = lane; at < args.width; at += kWarp) {
    const Vector<T, 1> sum = sums != nullptr ? Vector<T, 1>{sums[at]} : sum_at(at);
    Vector<T, 1> weight;
    if (args.weight != nullptr) weight.at[0] = static_cast<const T*>(args.weight)[at];
    y[at] = finish<T, P>(sum, scale, args.weight == nullptr ? nullptr : &weight).at[0];
  }
}

template <typename T, typename P, Sources kSources, int kLanes, int kVectors, bool kPairs = false>
void launch_rows(const RmsNormSiluArgs& args, CUstream_st* stream) {
  const std::int64_t frames = kPairs ? 1 : (args.rows + args.frame_rows - 1) / args.frame_rows;
  constexpr std::int64_t kAtOnce = kThreads / kLanes;
  const std::int64_t all = (args.frame_rows + kAtOnce - 1) / kAtOnce;
  const std::int64_t most =
      kBlocksPerMultiprocessor * device_attribute(cudaDevAttrMultiProcessorCount) / frames;
  const std::int64_t blocks = std::max<std::int64_t>(1, std::min(all, most));
  held_rows_kernel<T, P, kSources, kLanes, kVectors, kPairs>
      <<<static_cast<unsigned>(frames * blocks), kThreads, 0, stream>>>(
          args, static_cast<unsigned>(blocks));
}

// False: there is no kernel for these sources.
template <typename T, typename P, int kLanes, int kVectors>
bool launch_sources(RmsNormSiluArgs args, CUstream_st* stream) {
  using S = Sources;
  constexpr bool kOneType = std::is_same_v<T, P>;
  if (kOneType && args.x == nullptr && args.part_count == 1) {
    args.x = args.parts[0];
    args.part_count = 0;
  }
  if (args.before != nullptr) {
    if constexpr (sizeof(P) == 2) {
      if (args.part_count == 0) {
        launch_rows<T, P, S::map, kLanes, kVectors, true>(args, stream);
      } else if constexpr (!kOneType) {
        launch_rows<T, P, S::part, kLanes, kVectors, true>(args, stream);
      }
    }
  } else if (args.part_count == 0) {
    launch_rows<T, P, S::map, kLanes, kVectors>(args, stream);
  } else if (args.part_count > 1) {
    if constexpr (kLanes > kMostLanesOfAny) {
      return false;
    } else {
      launch_rows<T, P, S::any, kLanes, kVectors>(args, stream);
    }
  } else if (args.x != nullptr) {
    launch_rows<T, P, S::map_and_part, kLanes, kVectors>(args, stream);
  } else if constexpr (!kOneType) {
    launch_rows<T, P, S::part, kLanes, kVectors>(args, stream);
  }
  return true;
}

bool in_vectors(const RmsNormSiluArgs& args) {
  bool good = args.width % kElements == 0 && args.y_frame_stride % kElements == 0;
  for (const void* pointer :
       {args.x, args.weight, static_cast<const void*>(args.sum), static_cast<const void*>(args.y),
        static_cast<const void*>(args.before), args.parts[0], args.parts[1], args.parts[2]})
    good = good && aligned(pointer);
  return good && args.before_frame_stride % kElements == 0;
}

// Whether there are kernels for fewer vectors of a thread, too: where clips are decoded.
template <typename T, typename P>
constexpr bool kOftenUsed = std::is_same_v<T, __nv_bfloat16> || !std::is_same_v<T, P>;

// By as few lanes as hold a row in three vectors each, which Wan 2.1's widths, three times a power
// of two, fill. False: there is no kernel for it.
template <typename T, typename P, int kLanes = kFewestLanes>
bool launch_vectors(const RmsNormSiluArgs& args, CUstream_st* stream) {
  const std::int64_t vectors = args.width / kElements;
  if constexpr (kLanes < kWarp) {
    if (vectors > 3 * kLanes) return launch_vectors<T, P, 2 * kLanes>(args, stream);
  }
  if constexpr (kOftenUsed<T, P>) {
    if (vectors <= 2 * kLanes) return launch_sources<T, P, kLanes, 2>(args, stream);
    if (vectors <= 3 * kLanes) return launch_sources<T, P, kLanes, 3>(args, stream);
  }
  if constexpr (kLanes == kWarp || !kOftenUsed<T, P>) {
    if (vectors <= kMostVectors * kLanes)
      return launch_sources<T, P, kLanes, kMostVectors>(args, stream);
  }
  return false;
}

template <typename T, typename P>
void launch(const RmsNormSiluArgs& args, CUstream_st* stream) {
  if (in_vectors(args) && launch_vectors<T, P>(args, stream)) return;
  constexpr std::int64_t kRows = kThreads / kWarp;
  const auto blocks = static_cast<unsigned>((args.rows + kRows - 1) / kRows);
  any_row_kernel<T, P><<<blocks, kThreads, 0, stream>>>(args);
}

}  // namespace

const char* rms_norm_silu_unsupported(const RmsNormSiluArgs& args) {
  if (args.width < 1) return "the width is below 1";
  if (args.rows > kMaxBlocks) return "more than 2^31 - 1 rows";
  if (args.frame_rows < 1 || args.frame_rows > kMaxBlocks) return "a frame has 1 to 2^31 - 1 rows";
  if (args.part_count < 0 || args.part_count > kNormParts) return "more than three parts";
  if (args.x == nullptr && args.part_count == 0) return "nothing to be summed";
  const bool mixed = args.dtype == DType::f32 && args.part_dtype == DType::f16;
  if (args.dtype != args.part_dtype && !mixed) return "parts of this dtype beside these maps";
  if (args.before != nullptr) {
    if (args.y == nullptr || args.sum != nullptr || (args.x != nullptr) + args.part_count != 1)
      return "pairs of frames are made of one map or part, without its sum";
    if (args.rows % (2 * args.frame_rows) != 0) return "an odd number of frames";
    if (args.part_dtype == DType::f32 || args.width > kMostPairedWidth || !in_vectors(args))
      return "pairs of rows that are of float32, wider than 1024 or not in vectors";
  }
  return nullptr;
}

const char* rms_norm_silu(const RmsNormSiluArgs& args, CUstream_st* stream) {
  if (const char* reason = rms_norm_silu_unsupported(args)) return reason;
  if (args.rows == 0) return nullptr;
  if (args.dtype != args.part_dtype) {
    launch<float, __half>(args, stream);
  } else {
    with_device_type(args.dtype, [&](auto type) {
      using T = decltype(type);
      launch<T, T>(args, stream);
    });
  }
  return launch_error();
}

}  // namespace diptych::kernels
