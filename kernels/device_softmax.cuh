// The running softmax of attention on compute capability 9.0: scores of a tile of keys, as products
// of a warpgroup leave them in registers, become weights.
//
// A running softmax is usually relative to the largest score so far (FlashAttention, Dao et al.,
// arXiv:2205.14135), or to one that was not exceeded by much (FlashAttention-4,
// github.com/Dao-AILab/flash-attention, flash_attn/cute); either way the largest of a tile must be
// found before there is a weight. Here it is found in the first tile only. Weights of later tiles
// are relative to the same score for as long as their type can hold them, and that shows in their
// sums, which are needed anyway. Where a sum is beyond the limit, a power of two brings the weights
// back; where it is beyond float32, the scores are gone, so the warp multiplies that tile again and
// then finds its largest.
#pragma once

#include <cmath>
#include <type_traits>

#include "kernels/device_hopper.cuh"

namespace diptych::kernels {

// Of the two rows of a thread: q, then q + 8, as a product's sums have them. Logits are in powers
// of two.
struct Softmax {
  float most[2];  // the logits that weights are relative to
  float sum[2];   // of this thread's weights
};

// Of weights of type T: what those of a tile may sum up to in a thread, and the power of two that
// the largest such sum of a row becomes where it was more. In e4m3 a weight below 2^-10 is lost, so
// sums are kept near the limit: at most keys / 1024 is lost of a whole of 64 or more.
template <typename T>
inline constexpr float kMostSum = std::is_same_v<T, __nv_fp8_e4m3> ? 448
                                  : std::is_same_v<T, __half>      ? 0x1p15f
                                                                   : 0x1p64f;
template <typename T>
inline constexpr int kUsualPower = std::is_same_v<T, __nv_fp8_e4m3> ? 6 : 0;
inline constexpr float kMostInFloat = 0x1p100f;  // so that a power of two can bring it back

__device__ __forceinline__ float exp2_of(float x) {
  float result;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
}

// Of four neighbouring lanes, which share a row.
__device__ __forceinline__ float most_of_quad(float most) {
  most = fmaxf(most, __shfl_xor_sync(kAllLanes, most, 1));
  return fmaxf(most, __shfl_xor_sync(kAllLanes, most, 2));
}

// Makes weights exp2(scale * score - most) of scores; `sum` becomes the thread's sums of them.
template <int kScores>
__device__ __forceinline__ void weigh(float (&scores)[kScores], float (&sum)[2],
                                      const Softmax& softmax, float scale) {
#pragma unroll
  for (int i = 0; i < kScores; ++i)
    scores[i] = exp2_of(fmaf(scores[i], scale, -softmax.most[i / 2 % 2]));
  // Two chains a row, because each link waits for the one before.
  float chains[4] = {scores[0], scores[1], scores[2], scores[3]};
#pragma unroll
  for (int i = 4; i < kScores; ++i) chains[i % 4] += scores[i];
  sum[0] = chains[0] + chains[1];
  sum[1] = chains[2] + chains[3];
}

// Multiplies the weights of a row, and what was summed of it, so that its largest sum of a thread
// is from 2^kUsualPower to before twice that, and returns the factor.
template <typename T, int kRow, int kScores>
__device__ __forceinline__ float bring_back(float (&weights)[kScores], float (&sum)[2],
                                            Softmax& softmax, float largest) {
  const int power = kUsualPower<T> + 127 - static_cast<int>(__float_as_uint(largest) >> 23);
  const float factor = __uint_as_float(static_cast<unsigned>(power + 127) << 23);
#pragma unroll
  for (int i = 0; i < kScores; ++i) {
    if (i / 2 % 2 == kRow) weights[i] *= factor;
  }
  sum[kRow] *= factor;
  softmax.most[kRow] -= static_cast<float>(power);
  return factor;
}

// Of the first tile.
template <typename T, int kScores>
__device__ __forceinline__ void weigh_first(float (&scores)[kScores], Softmax& softmax,
                                            float scale) {
  float chains[4] = {scores[0], scores[1], scores[2], scores[3]};
#pragma unroll
  for (int i = 4; i < kScores; ++i) chains[i % 4] = fmaxf(chains[i % 4], scores[i]);
#pragma unroll
  for (int row = 0; row < 2; ++row)
    softmax.most[row] = most_of_quad(fmaxf(chains[2 * row], chains[2 * row + 1])) * scale;
  weigh(scores, softmax.sum, softmax, scale);
  if constexpr (kUsualPower<T> != 0) {
    const float low = most_of_quad(softmax.sum[0]), high = most_of_quad(softmax.sum[1]);
    bring_back<T, 0>(scores, softmax.sum, softmax, low);
    bring_back<T, 1>(scores, softmax.sum, softmax, high);
  }
}

// The weights of one row of a tile from scores that are computed again.
template <int kRow, int kScores>
__device__ __forceinline__ void weigh_again(float (&weights)[kScores], float& sum,
                                            const float (&again)[kScores], float scale,
                                            float most) {
  sum = 0;
#pragma unroll
  for (int i = 0; i < kScores; ++i) {
    if (i / 2 % 2 != kRow) continue;
    weights[i] = exp2_of(fmaf(again[i], scale, -most));
    sum += weights[i];
  }
}

// Weighs a tile after the first. The whole group calls before_check() once it has weights. A whole
// warp calls the others: score_again(sums, eight) computes the scores with the tile's keys from 8 *
// eight on anew, rescale(factor) multiplies what the two rows have summed of values. That is rare,
// so all of it stands in one place.
template <typename T, int kScores, typename BeforeCheck, typename ScoreAgain, typename Rescale>
__device__ __forceinline__ void weigh_next(float (&scores)[kScores], Softmax& softmax, float scale,
                                           const BeforeCheck& before_check,
                                           const ScoreAgain& score_again, const Rescale& rescale) {
  float sum[2];
  weigh(scores, sum, softmax, scale);
  before_check();
  // A NaN stays in the sum, whether its row gets here or not.
  if (__any_sync(kAllLanes, !(fmaxf(sum[0], sum[1]) <= kMostSum<T>))) {
    // Of each row by itself: its bits must not depend on the others of the warp.
    float factor[2] = {1, 1};
    if (__any_sync(kAllLanes, !(fmaxf(sum[0], sum[1]) <= kMostInFloat))) {
      // In local memory, and in a loop that is not unrolled: registers are for the usual way.
      float again[kScores];
      float most[2] = {-INFINITY, -INFINITY};
#pragma unroll 1
      for (int eight = 0; eight < kScores / 4; ++eight) {
        float sums[4];
        score_again(sums, eight);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          again[4 * eight + i] = sums[i];
          most[i / 2] = fmaxf(most[i / 2], sums[i]);
        }
      }
#pragma unroll
      for (int row = 0; row < 2; ++row) {
        const unsigned lanes = __ballot_sync(kAllLanes, !(sum[row] <= kMostInFloat));
        const float found = most_of_quad(most[row]) * scale - kUsualPower<T>;
        if ((lanes >> threadIdx.x % kWarp / 4 * 4 & 15) == 0) continue;
        factor[row] = exp2f(softmax.most[row] - found);
        softmax.most[row] = found;
        if (row == 0) {
          weigh_again<0>(scores, sum[0], again, scale, found);
        } else {
          weigh_again<1>(scores, sum[1], again, scale, found);
        }
      }
    }
    const float low = most_of_quad(sum[0]), high = most_of_quad(sum[1]);
    if (low > kMostSum<T>) factor[0] *= bring_back<T, 0>(scores, sum, softmax, low);
    if (high > kMostSum<T>) factor[1] *= bring_back<T, 1>(scores, sum, softmax, high);
    softmax.sum[0] *= factor[0];
    softmax.sum[1] *= factor[1];
    rescale(factor);
  }
  softmax.sum[0] += sum[0];
  softmax.sum[1] += sum[1];
}

// Hides the scores with keys from the first on, of a tile or of a part of it, that a row does not
// see: row q sees `low` of them, row q + 8 `high`.
template <int kScores>
__device__ __forceinline__ void hide(float (&scores)[kScores], int low, int high, int lane) {
#pragma unroll
  for (int i = 0; i < kScores; ++i) {
    const int column = i / 4 * 8 + 2 * (lane % 4) + i % 2;
    if (column >= (i / 2 % 2 == 0 ? low : high)) scores[i] = -INFINITY;
  }
}

// Four 8 x 8 matrices of 16-bit elements: lane 8m + r gives the address of row r of matrix m and
// gets of each matrix the elements 2p and 2p + 1 of its row lane / 4, p its lane % 4.
__device__ __forceinline__ void load_matrices(unsigned (&words)[4], unsigned address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
               : "r"(address)
               : "memory");
}
// The same of two; the addresses are those of lanes 0 to 15.
__device__ __forceinline__ void load_matrices(unsigned (&words)[2], unsigned address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0, %1}, [%2];"
               : "=r"(words[0]), "=r"(words[1])
               : "r"(address)
               : "memory");
}

// By a warp: sums += a [16, k] * b [8, k]^T of the k elements that 32 bytes hold, laid out as a
// warpgroup's.
template <typename T>
__device__ __forceinline__ void multiply_16x8(float (&sums)[4], const unsigned (&a)[4],
                                              const unsigned (&b)[2]) {
#define DIPTYCH_MMA(shape, type)                                                      \
  asm volatile("mma.sync.aligned." shape ".row.col.f32." type "." type                \
               ".f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};" \
               : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])           \
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]))
  if constexpr (std::is_same_v<T, __half>) {
    DIPTYCH_MMA("m16n8k16", "f16");
  } else if constexpr (std::is_same_v<T, __nv_fp8_e4m3>) {
    DIPTYCH_MMA("m16n8k32", "e4m3");
  } else {
    static_assert(std::is_same_v<T, __nv_bfloat16>);
    DIPTYCH_MMA("m16n8k16", "bf16");
  }
#undef DIPTYCH_MMA
}

// By a warp: the scores of its 16 rows of q with 8 keys, as multiplying the warpgroup's rows gives
// them but for the order of sums. q and keys: addresses in shared memory of the first row and of
// the first key, which lie in kPanels swizzled panels.
template <typename T, int kPanels>
__device__ __forceinline__ void score_keys(float (&sums)[4], unsigned q, unsigned q_panel_bytes,
                                           unsigned keys, unsigned key_panel_bytes, unsigned lane) {
  constexpr unsigned kPart = 16, kParts = kSwizzledBytes / kPart;  // bytes; of a row
  const unsigned row = lane % kSwizzleRows;
#pragma unroll
  for (int i = 0; i < 4; ++i) sums[i] = 0;
#pragma unroll 1
  for (unsigned part = 0; part < kPanels * kParts; part += 2) {
    const unsigned panel = part / kParts, within = part % kParts;
    unsigned a[4], b[2];
    load_matrices(a, q + panel * q_panel_bytes + lane % 16 * kSwizzledBytes +
                         ((within + lane / 16) ^ row) * kPart);
    load_matrices(b, keys + panel * key_panel_bytes + row * kSwizzledBytes +
                         ((within + lane / 8 % 2) ^ row) * kPart);
    multiply_16x8<T>(sums, a, b);
  }
}

}  // namespace diptych::kernels
