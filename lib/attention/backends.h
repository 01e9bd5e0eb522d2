// What the backends share, and how attention.cpp makes them. Internal to lib/attention and its
// tests; everyone else includes attention.h.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lib/attention/attention.h"

namespace diptych {

struct ComputeCapability {
  int major = 0, minor = 0;
};
// Of a CUDA device; nothing for the CPU, in a CPU build and where torch sees no GPU.
std::optional<ComputeCapability> compute_capability(at::Device device);

// Why a backend can serve no call at all on this device, or nothing.
std::optional<std::string> math_unavailable(at::Device device);
std::optional<std::string> sdpa_unavailable(at::Device device);
std::optional<std::string> flash_unavailable(at::Device device);
std::optional<std::string> cudnn_unavailable(at::Device device);
std::optional<std::string> splitkv_unavailable(at::Device device);
std::optional<std::string> hopper_unavailable(at::Device device);

std::unique_ptr<AttentionBackend> make_math();
std::unique_ptr<AttentionBackend> make_math_in_order();
std::unique_ptr<AttentionBackend> make_sdpa();
std::unique_ptr<AttentionBackend> make_flash(at::Device device);
std::unique_ptr<AttentionBackend> make_cudnn(at::Device device);
std::unique_ptr<AttentionBackend> make_splitkv(at::Device device);
std::unique_ptr<AttentionBackend> make_hopper(at::Device device);
std::unique_ptr<AttentionBackend> make_hopper_fp8(at::Device device);
// Takes the first that prepares a call; `preferred` is in order of preference.
std::unique_ptr<AttentionBackend> make_auto(
    std::vector<std::unique_ptr<AttentionBackend>> preferred, SayFn say, void* context,
    std::shared_ptr<const TuningTable> tuning = nullptr);

// Checks shapes, strides, dtypes and lengths against attention.h. Throws c10::Error: these are
// errors of the programmer.
void check_call(const AttentionCall& call);
// Throws InputError naming the backend and its reason when it cannot serve the call.
void require_supported(const AttentionBackend& backend, const AttentionCall& call);
AttentionKind kind_of(const AttentionCall& call);
// Why math and sdpa cannot take such tensors.
std::optional<std::string> dtype_unsupported(const AttentionKind& kind);
// Why the kernels that read 16 bytes at a time in half precision cannot take such tensors.
std::optional<std::string> half_precision_unsupported(const AttentionKind& kind,
                                                      std::int64_t max_head_dim);
// Why our kernels for compute capability 9.0 cannot take such tensors.
std::optional<std::string> hopper_kind_unsupported(const AttentionKind& kind);
// Why those kernels cannot read the tensors of this call where they lie.
std::optional<std::string> alignment_unsupported(const AttentionCall& call);
// Why a backend that has neither bias nor log-sum-exp cannot serve the call, or nothing.
std::optional<std::string> extras_unsupported(const AttentionCall& call);
std::optional<std::string> bias_unsupported(const AttentionCall& call);
bool has_bias(const AttentionCall& call);  // of either kind
// last_key_bias of samples from `first` on that have so many keys: [samples, 1, 1, keys].
Tensor last_key_mask(const AttentionCall& call, std::int64_t first, std::int64_t samples,
                     std::int64_t keys);
std::optional<std::string> log_sum_exp_unsupported(const AttentionCall& call);

// One sample of a call: its rows of q, and how many of its keys count.
struct SampleRows {
  std::int64_t sample, first_query, queries, keys;
};
template <typename Body>
void for_each_sample(const AttentionLengths& lengths, const Body& body) {
  std::int64_t first_query = 0;
  for (std::int64_t sample = 0; sample < lengths.samples(); ++sample) {
    const auto i = static_cast<std::size_t>(sample);
    body(SampleRows{sample, first_query, lengths.q[i], lengths.k[i]});
    first_query += lengths.q[i];
  }
}
// Elements from one sample's keys to the next one's. A single sample has no such stride; its
// capacity rows are taken instead.
std::int64_t sample_stride(const Tensor& keys);

}  // namespace diptych
