// The fused operations of a transformer layer, in float32, bfloat16 and float16. Each checks its
// arguments (c10::Error, "[op] ..."), then takes the CUDA kernel or the reference in plain ATen.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "lib/base/choices.h"
#include "lib/tensor/types.h"

namespace diptych {

class TuningTable;  // lib/tuning/table.h

// What an op goes by. `tuning`: the choices measured on the device of the tensors, null for the
// defaults; it must outlive the call, and counts for kernels and bfloat16 only.
struct Kernels {
  KernelPolicy policy = KernelPolicy::automatic;
  const TuningTable* tuning = nullptr;

  Kernels() = default;
  // Both ways without a word: where there is nothing to choose the policy is all.
  Kernels(KernelPolicy chosen, const TuningTable* measured = nullptr)  // NOLINT
      : policy(chosen), tuning(measured) {}
  operator KernelPolicy() const { return policy; }  // NOLINT
};

// The rows of a call that one set of weights is for: those listed, each once, or a range. An op
// that routes takes up to two sets, understanding and generation, any of them empty and no row in
// both; rows in neither are left as they are, and what is returned for them is unset. A listed row
// out of range throws on the CPU and traps on the GPU.
struct RowSet {
  Tensor index;                       // int64 [count], contiguous; undefined: a range
  std::int64_t first = 0, count = 0;  // first: of a range
  static RowSet range(std::int64_t first, std::int64_t count);
  static RowSet list(Tensor index);
};

// y = round(x / sqrt(mean(x^2) + eps)) * weight: statistics in float32, the quotient rounded to x's
// dtype, then times the weight in that dtype (transformers Qwen2RMSNorm).
// x [rows, width] (row stride free), weight [width] of x's dtype -> [rows, width].
Tensor rms_norm(const Tensor& x, const Tensor& weight, double eps, KernelPolicy policy);

struct NormRoute {
  Tensor weight;  // [width]
  RowSet rows;
};
// The same with a weight for each set of rows, in one launch.
Tensor rms_norm(const Tensor& x, std::span<const NormRoute> routes, double eps,
                KernelPolicy policy);

// x += delta (rounded to x's dtype), in place, then rms_norm(x): one pass instead of three.
// x [rows, width], contiguous; delta likewise (row stride free).
Tensor add_rms_norm_(Tensor& x, const Tensor& delta, std::span<const NormRoute> routes, double eps,
                     const Kernels& kernels);

// silu(gate) rounded to the dtype, times up. gate_up [rows, 2 * inner] = [gate | up] (row stride
// free) -> [rows, inner].
Tensor silu_mul(const Tensor& gate_up, const Kernels& kernels);

// Where intermediate values of qk_norm_rope are rounded (specs/bagel.md, section 12).
enum class RopeRounding {
  every_step,  // understanding mode: norm, products and sum each rounded to the dtype
  at_the_end,  // generation mode: float32 from the projection to the final rounding
};

struct QkNormRoute {
  Tensor q_weight, k_weight;  // [head_dim] per-head RMSNorm weights, of qkv's dtype
  RowSet rows;
};
struct QkNormRope {
  Tensor qkv;  // [rows, (heads + 2 * kv_heads) * head_dim] = [q | k | v], row stride free
  std::vector<QkNormRoute> routes;
  Tensor cos, sin;      // float32 [rows, head_dim / 2], already rounded to the compute dtype
  Tensor slots;         // int64 [rows]: sample * capacity + position in the key buffer, each once
  Tensor keys, values;  // [samples, capacity, kv_heads, head_dim] views, contiguous below the
                        // sample dimension; written at `slots` only
  std::int64_t heads = 0, kv_heads = 0, head_dim = 0;
  double eps = 1e-6;
  RopeRounding rounding = RopeRounding::every_step;
};
// Norms q and k per head, rotates both (half-split), writes k and v into the cache slots and
// returns q [rows, heads, head_dim] in qkv's dtype. head_dim: even, up to 256. A slot out of range
// throws on the CPU and traps on the GPU.
Tensor qk_norm_rope(const QkNormRope& args, KernelPolicy policy);

// x [rows, inputs], weight [outputs, inputs], bias [outputs] or undefined -> [rows, outputs]. On
// CUDA one row, a decoded token's, and up to 16 rows of 16 bits whose inputs 8 divides take a
// kernel of their own (sums in float32, one rounding); everything else is ATen's.
Tensor linear(const Tensor& x, const Tensor& weight, const Tensor& bias, const Kernels& kernels);

struct DecodeAttention {
  Tensor q;  // [rows, heads, head_dim], sample after sample; heads packed, row stride free
  Tensor keys, values;  // [samples, capacity, kv_heads, head_dim], heads packed; row and sample
                        // strides free, but the same of both
  Tensor key_count;     // int32 [samples]: the rows of keys that count, 1 to capacity
  Tensor query_starts;  // int32 [samples + 1], ascending from 0: sample s has the rows of q from
                        // [s] to before [s + 1]; undefined: all are of one sample
  double scale = 0;
  bool causal = false;  // lower-right aligned: row j of n does not see the last n - 1 - j keys
  std::int64_t most_rows = 0;  // of a sample, where the host knows it; rows beyond are not computed
};
// Attention of a few rows, each over all keys of its sample or those up to its own: a new token's,
// drafts', or a picture's markers'.
// -> [rows, heads, head_dim] in q's dtype, contiguous, softmax in float32. Query head h reads key
// head h / (heads / kv_heads). The kernel reads both tables on the device, never on the host, and a
// row gives the same bits alone and beside others (but see the kernel's header). Throws c10::Error
// for other shapes, dtypes and strides, InputError for what the kernel cannot take.
Tensor decode_attention(const DecodeAttention& args, KernelPolicy policy);
// Why the CUDA kernel cannot take this call, or nothing; shapes and dtypes must be as above. Does
// not touch the device.
std::optional<std::string> decode_attention_unsupported(const DecodeAttention& args);
// Why it can take no call with heads of this kind, or nothing.
std::optional<std::string> decode_attention_unsupported(std::int64_t heads, std::int64_t kv_heads,
                                                        std::int64_t head_dim,
                                                        at::ScalarType dtype);

// The work between qkv_proj and o_proj: norm, rotation, cache write and attention.
struct RopeAttention {
  QkNormRope rope;
  // As in DecodeAttention, over rope's keys and values. Each sample's rows are its last keys: row r
  // of n has the slot of key key_count - n + r, and key_count is n to capacity.
  Tensor key_count, query_starts;
  double scale = 0;
  bool causal = false;
  std::int64_t most_rows = 0;
};
// qk_norm_rope() and decode_attention() of its rows -> [rows, heads, head_dim]. By one kernel for
// few rows of one sample in 16 bits (kernels/rope_attention, compute capability 9.0), which rounds
// the weights of attention to the dtype and traps where a row's slot is another; its time counts as
// that of attention.
Tensor rope_attention(const RopeAttention& args, KernelPolicy policy);

// theta^(-2j / head_dim), j < head_dim / 2: float32 [head_dim / 2], computed on the CPU, so every
// device gets the same bits. head_dim even.
Tensor rope_frequencies(std::int64_t head_dim, double theta);
// cos and sin of angles, rounded to `dtype` and kept as float32. angles float32
// [rows, head_dim / 2] -> two of the same shape.
std::pair<Tensor, Tensor> rope_table(const Tensor& angles, at::ScalarType dtype);

// [cos(t * f_j) | sin(t * f_j)] with f_j = exp(-ln(10000) * j / (dim / 2)), j < dim / 2: float32
// [dim], dim even. t is not scaled. Computed on the CPU, so every device gets the same bits.
Tensor timestep_embedding(float t, std::int64_t dim = 256, at::Device device = at::kCPU);

}  // namespace diptych
