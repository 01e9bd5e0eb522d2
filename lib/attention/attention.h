// Attention over packed sequences: sample i asks q_lengths[i] queries against the first
// k_lengths[i] rows of its own key buffer. Lengths, never masks or padding.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lib/ops/linear_operand.h"
#include "lib/tensor/types.h"

namespace diptych {

// Built once per plan (not per step): host values for choosing kernels, device values for them.
// follow() may change the lengths of keys later, so no choice may depend on them.
struct AttentionLengths {
  // Throws c10::Error when sizes differ, a q length is < 1, a k length is < 1 or over capacity, or
  // the rows are more than an int32 counts: only a programmer can get them wrong.
  static AttentionLengths make(std::vector<std::int64_t> q_lengths,
                               std::vector<std::int64_t> k_lengths, std::int64_t capacity,
                               at::Device device);
  std::vector<std::int64_t> q, k;  // [samples]
  std::int64_t total_q = 0, max_q = 0, max_k = 0, capacity = 0;
  Tensor q_device, k_device;  // int32 [samples]
  Tensor cu_q;                // int32 [samples + 1], running sum of q
  Tensor cu_capacity;         // int32 [samples + 1], multiples of capacity
  // Takes the lengths of keys from one that has the same queries and capacity; the tensors stay
  // where they are. Throws c10::Error where it has others.
  void follow(const AttentionLengths& other);
  std::int64_t samples() const { return static_cast<std::int64_t>(q.size()); }
  bool equal_q() const;  // every sample has max_q queries
};

struct AttentionCall {
  Tensor q;     // [total_q, heads, head_dim], sample after sample; the last dimension is contiguous
  Tensor k, v;  // [samples, capacity, kv_heads, head_dim]; each [kv_heads, head_dim] row
                // contiguous, the sample stride is free; rows beyond k_lengths[i] do not
                // enter the result, but must be finite: cuDNN weighs the rest of a tile with zero
  const AttentionLengths* lengths = nullptr;
  bool causal = false;  // lower-right aligned: query j of n sees keys up to k_length - n + j
  double scale = 0;     // of the logits; head_dim^-0.5 in every model here
};

// What all calls of a model have in common, known before there is a tensor.
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
  // Why this call cannot be served, or nothing: by its kind, and by where its tensors lie. Must not
  // touch the device.
  virtual std::optional<std::string> unsupported(const AttentionCall& call) const;
  // The same, and builds what the call needs before it can run (cuDNN plans, cached), which may
  // itself show that the call cannot be served. forward() does this too; calling it ahead of a loop
  // moves the cost out of the first step.
  virtual std::optional<std::string> prepare(const AttentionCall& call) const {
    return unsupported(call);
  }
  // [total_q, heads, head_dim] in q's dtype. Launches on the current stream; does not synchronise.
  // Throws InputError with the reason for a call that cannot be served.
  virtual Tensor forward(const AttentionCall& call) const = 0;
  // The same as rows of a linear layer, [total_q, heads * head_dim]: quantised where the layer
  // takes them so (`format`) and the backend computes such, else plain.
  virtual LinearOperand forward_rows(const AttentionCall& call, Quantization format) const;
  // Whether what forward() launches finds the lengths of keys on the device, so that its replay
  // from a CUDA graph serves other lengths of the same capacity.
  virtual bool reads_lengths_on_device() const { return false; }
  // The backends that really ran since then, in order of first use: "cudnn, flash" under `auto`.
  virtual std::string served_by() const { return std::string(name()); }
  virtual void forget_served() const {}
};

// Of CUDA, for calls of at most kMostSplitQueries (lib/tuning/choices.h) queries a sample: a part
// of `auto`, and no name that a user asks for, as it cannot paint a picture alone.
inline constexpr std::string_view kSplitKv = "splitkv";
// Of CUDA: cuDNN in e4m3, which `auto` takes for many queries beside weights in fp8. No name that a
// user asks for either, as it reads no text.
inline constexpr std::string_view kCudnnFp8 = "cudnn_fp8";

using SayFn = void (*)(void* context, const std::string& text);
struct AutoOptions {
  SayFn say = nullptr;  // hears each distinct reason why a call is not the preferred one's, once
  void* context = nullptr;
  // What was measured on the device of calls in bfloat16 that are not causal; the backend that was
  // fastest for their longest sample goes first (behind cudnn_fp8). Null: the usual order.
  std::shared_ptr<const TuningTable> tuning = nullptr;
  KernelPolicy kernels = KernelPolicy::automatic;  // reference: without kernels of ours
  Quantization quantization = Quantization::none;  // fp8: with cudnn_fp8
};

// `name`: math, sdpa, flash, cudnn, splitkv, cudnn_fp8 or auto. `auto` takes, per call, the first
// of the device's order of preference that serves it (CUDA: cudnn where Hopper or newer, flash,
// sdpa, math, but flash first for causal calls and for few queries, and before it splitkv for the
// very few that it takes; cudnn_fp8 before all for kFewestFp8Queries that are not causal; CPU:
// sdpa, math). A backend asked for by name throws InputError with its reason when it cannot serve a
// call. Throws InputError for an unknown name (lists those that a user may ask for) and for a
// backend this build or device lacks (says why).
std::unique_ptr<AttentionBackend> make_attention(std::string_view name, at::Device device,
                                                 AutoOptions options = {});

// Why the backend of that name can serve no call of this kind, or nothing (a call may still be
// refused for its strides, or for want of a cuDNN plan): the answer of `unsupported`, before
// anything is loaded. `auto`: where none can. Throws InputError for an unknown name.
std::optional<std::string> attention_unsupported(std::string_view name, const AttentionKind& kind);

struct AttentionInfo {
  std::string name;
  std::optional<std::string> unavailable;  // the reason, where not usable
};
// Every backend that a user may ask for, but auto.
std::vector<AttentionInfo> list_attention(at::Device device);

}  // namespace diptych
