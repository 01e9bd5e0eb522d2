// Attention over packed sequences: sample i asks q_lengths[i] queries against the first
// k_lengths[i] rows of its own key buffer. Sequences have lengths, never masks or padding.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lib/attention/lengths.h"
#include "lib/ops/linear_operand.h"
#include "lib/ops/ops.h"
#include "lib/tensor/types.h"

namespace diptych {

struct AttentionCall {
  Tensor q;  // [total_q, heads, head_dim], sample after sample; the last dimension is contiguous
  Tensor k,
      v;  // [samples, capacity, kv_heads, head_dim]; each [kv_heads, head_dim] row
          // contiguous, sample and row strides are free; rows beyond k_lengths[i] do not change
          // the result, but must be finite: cuDNN and hopper multiply the rest of a tile by zero
  const AttentionLengths* lengths = nullptr;
  bool causal = false;  // lower-right aligned: query j of n sees keys up to k_length - n + j
  double scale = 0;     // of q k^T; head_dim^-0.5 in most models, 1 in T5

  // At most one of these is added to the scaled logits; undefined: nothing. float32, on q's device.
  // [heads, max_q, capacity], strides free: for query i and key j of every sample alike, as T5's
  // bias of relative positions. What lies beyond a sample's queries and keys is not read. A query
  // must see at least one key.
  Tensor bias{};
  // [samples], contiguous: for the last key of each sample. With log(n) it stands for n equal keys.
  Tensor last_key_bias{};
  // Where it is defined, forward() also writes the log of the sum of the exponentiated logits to it
  // (natural logarithm, bias included), for merge_attention(). float32 [total_q, heads], on q's
  // device, strides free.
  Tensor log_sum_exp{};
};

// What all calls of a model have in common. It is known before there is a tensor.
struct AttentionKind {
  at::Device device;
  at::ScalarType dtype;
  std::int64_t head_dim;
};

// Query head h reads key head h / (heads / kv_heads).
class AttentionBackend {
 public:
  virtual ~AttentionBackend() = default;
  virtual std::string_view name() const = 0;
  // Why no call of this kind can be served, or nothing. Must not touch the device.
  virtual std::optional<std::string> kind_unsupported(const AttentionKind& kind) const = 0;
  // Why this call cannot be served, or nothing: by its kind, its bias and log-sum-exp, and by where
  // its tensors lie. Must not touch the device.
  virtual std::optional<std::string> unsupported(const AttentionCall& call) const;
  // As unsupported(), and builds what the call needs before it can run (cuDNN plans, cached).
  // Building may show that the call cannot be served. forward() does this too; call prepare() ahead
  // of a loop to keep the cost out of the first step.
  virtual std::optional<std::string> prepare(const AttentionCall& call) const {
    return unsupported(call);
  }
  // Whether calls of this kind without a causal mask may have a bias of the last key.
  virtual bool takes_last_key_bias(const AttentionKind& /*kind*/) const { return false; }
  // [total_q, heads, head_dim] in q's dtype. Launches on the current stream; does not synchronise.
  // Throws InputError with the reason for a call that cannot be served.
  virtual Tensor forward(const AttentionCall& call) const = 0;
  // The same as rows of a linear layer, [total_q, heads * head_dim]: quantised where the layer
  // takes quantised rows (`format`) and the backend makes them, else plain.
  virtual LinearOperand forward_rows(const AttentionCall& call, Quantization format) const;
  // As forward_rows(), but first norms and rotates q and k and writes k and v to the cache, as
  // qk_norm_rope(rope) does. `call.q` is undefined; `call.k` and `call.v` are rope's.
  virtual LinearOperand forward_projected(QkNormRope rope, AttentionCall call, Quantization format,
                                          KernelPolicy kernels) const;
  // Whether these read the lengths of keys on the device. Then a CUDA graph of them can be replayed
  // with other lengths of the same capacity.
  virtual bool reads_lengths_on_device() const { return false; }
  // The backends that ran since forget_served(), in order of first use, such as "cudnn, flash" for
  // `auto`.
  virtual std::string served_by() const { return std::string(name()); }
  virtual void forget_served() const {}
};

// Our kernel for compute capability 9.0 and heads of 128.
inline constexpr std::string_view kHopper = "hopper";
// On CUDA, for calls of at most kMostSplitQueries (lib/tuning/choices.h) queries a sample. Only
// `auto` uses it; a user cannot ask for it, because it cannot serve a whole picture alone.
inline constexpr std::string_view kSplitKv = "splitkv";
// kHopper's kernel in e4m3. `auto` takes it for many queries when weights are fp8. A user cannot
// ask for it either, because it has no causal mask for text.
inline constexpr std::string_view kHopperFp8 = "hopper_fp8";
// math, with values summed in the order of torch's products on a CPU with AVX-512 on every
// device: key after key, each 256 apart. Only replays of recordings use it, which were summed so:
// hundreds of equal keys round alike, so that another order is further from the recording than its
// tolerance. A launch for each key makes it slow on a GPU.
inline constexpr std::string_view kMathInOrder = "math_in_order";
// Whether `backend` has attended in e4m3 since forget_served().
bool served_in_fp8(const AttentionBackend& backend);

using SayFn = void (*)(void* context, const std::string& text);
struct AutoOptions {
  SayFn say = nullptr;  // told once of each reason why the preferred backend does not serve a call
  void* context = nullptr;
  // What was measured on the device for bfloat16 calls without a causal mask. The backend that was
  // fastest for the longest sample goes first (behind that in e4m3). Null: the usual order.
  std::shared_ptr<const TuningTable> tuning = nullptr;
  KernelPolicy kernels = KernelPolicy::automatic;  // reference: without kernels of ours
  Quantization quantization = Quantization::none;  // fp8: with that in e4m3
};

// `name`: math, sdpa, flash, cudnn, hopper, splitkv, hopper_fp8, math_in_order or auto. For each
// call `auto` takes the first backend in the device's order of preference that serves it. CPU:
// sdpa, math. CUDA: hopper (compute capability 9.0, but under KernelPolicy::reference), cudnn
// (Hopper or newer), flash, sdpa, math, with these exceptions: flash goes first for causal calls
// and for few queries, splitkv before it for very few of either, and with weights in fp8 hopper_fp8
// before all for kFewestFp8Queries or more without a causal mask. A backend asked for by name
// throws InputError with its reason when it cannot serve a call. Throws InputError for an unknown
// name (lists those that a user may ask for) and for a backend that this build or device lacks
// (says why).
std::unique_ptr<AttentionBackend> make_attention(std::string_view name, at::Device device,
                                                 AutoOptions options = {});

// Why the backend of that name can serve no call of this kind, or nothing; for `auto`, why no
// backend can. Known before anything is loaded. A single call may still be refused for its strides,
// or because cuDNN has no plan for it. Throws InputError for an unknown name.
std::optional<std::string> attention_unsupported(std::string_view name, const AttentionKind& kind);

struct AttentionInfo {
  std::string name;
  std::optional<std::string> unavailable;  // the reason, where not usable
};
// Every backend that a user may ask for, except auto.
std::vector<AttentionInfo> list_attention(at::Device device);

}  // namespace diptych
