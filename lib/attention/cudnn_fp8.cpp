// cuDNN's fused attention in e4m3 (cudnn-frontend's sdpa_fp8), for Hopper and newer. On Hopper,
// cuDNN 9.19 can write only e4m3, which is what a quantised linear layer takes. One scale stands
// for a whole tensor. In a mean step of a picture of 1024x1024 (41 of 49 with two branches) on an
// H200 it took 18.1 ms, attention in bfloat16 25.6 ms (`bench --kernel-times`).
#include <compare>
#include <map>
#include <mutex>

#include "lib/attention/backends.h"
#include "lib/attention/cudnn_plan.h"
#include "lib/ops/quantize_attention.h"

namespace diptych {
namespace {

namespace fe = cudnn_frontend;

// NVIDIA/TransformerEngine (common/fused_attn) requires it for fp8 attention with lengths on
// Hopper.
constexpr std::size_t kMinVersion = 90700;
constexpr std::int64_t kMaxHeadDim = 128;

enum Uid : std::int64_t {
  kQ = 1,
  kK,
  kV,
  kOut,
  kQueries,
  kKeys,
  kMostWeight,
  kMostOut,
  kScales  // and behind it one for each AttentionScale
};

// Everything that a plan is built from; all tensors are packed.
struct PlanKey {
  c10::DeviceIndex device;
  std::int64_t samples, queries, heads, kv_heads, head_dim, capacity;
  double scale;
  auto operator<=>(const PlanKey&) const = default;
};

PlanKey plan_key(const AttentionCall& call) {
  return {call.q.device().index(), call.lengths->samples(), call.lengths->max_q, call.q.size(1),
          call.k.size(2),          call.q.size(2),          call.k.size(1),      call.scale};
}

// cuDNN's order of dimensions is [samples, heads, rows, head_dim]; the strides are ours.
void describe(fe::graph::Graph& graph, const PlanKey& key) {
  graph.set_io_data_type(fe::DataType_t::FP8_E4M3)
      .set_intermediate_data_type(fe::DataType_t::FLOAT)
      .set_compute_data_type(fe::DataType_t::FLOAT);
  const auto rows = [&](Uid uid, std::int64_t count, std::int64_t heads) {
    const std::int64_t row = heads * key.head_dim;
    return add_tensor(graph, uid, {key.samples, heads, count, key.head_dim},
                      {count * row, key.head_dim, row, 1});
  };
  const auto lengths = [&](Uid uid) {
    return add_numbers(graph, uid, key.samples, fe::DataType_t::INT32);
  };
  const auto scale = [&](AttentionScale which) {
    return add_numbers(graph, kScales + static_cast<std::int64_t>(which), 1, fe::DataType_t::FLOAT);
  };
  using enum AttentionScale;
  const auto options = fe::graph::SDPA_fp8_attributes()
                           .set_name("attention")
                           .set_generate_stats(false)
                           .set_attn_scale(static_cast<float>(key.scale))
                           .set_padding_mask(true)
                           .set_seq_len_q(lengths(kQueries))
                           .set_seq_len_kv(lengths(kKeys));
  const auto outputs =
      graph.sdpa_fp8(rows(kQ, key.queries, key.heads), rows(kK, key.capacity, key.kv_heads),
                     rows(kV, key.capacity, key.kv_heads), scale(q), scale(keys), scale(values),
                     scale(weights), scale(inverse_weights), scale(inverse_output), options);
  const std::int64_t row = key.heads * key.head_dim;
  outputs[0]
      ->set_uid(kOut)
      .set_output(true)
      .set_dim({key.samples, key.heads, key.queries, key.head_dim})
      .set_stride({key.queries * row, key.head_dim, row, 1})
      .set_data_type(fe::DataType_t::FP8_E4M3);
  // The graph must have these outputs, though nothing reads them: the largest weight and output.
  const auto most = [](const CudnnTensor& tensor, Uid uid) {
    tensor->set_uid(uid)
        .set_output(true)
        .set_dim({1, 1, 1, 1})
        .set_stride({1, 1, 1, 1})
        .set_data_type(fe::DataType_t::FLOAT);
  };
  most(outputs[2], kMostWeight);
  most(outputs[3], kMostOut);
}

class CudnnFp8Attention final : public Fp8AttentionBackend {
 public:
  std::string_view name() const override { return kCudnnFp8; }
  bool reads_lengths_on_device() const override { return true; }

  std::optional<std::string> kind_unsupported(const AttentionKind& kind) const override {
    if (std::optional<std::string> reason = half_precision_unsupported(kind, kMaxHeadDim))
      return reason;
    if (kind.head_dim % 16 == 0) return std::nullopt;
    return fmt::format("needs a head_dim that is a multiple of 16, not {}", kind.head_dim);
  }

  std::optional<std::string> unsupported(const AttentionCall& call) const override {
    if (std::optional<std::string> reason = kind_unsupported(kind_of(call))) return reason;
    if (std::optional<std::string> reason = fp8_unsupported(call)) return reason;
    if (!call.lengths->equal_q()) return "needs samples with the same number of queries";
    return alignment_unsupported(call);
  }

  std::optional<std::string> prepare(const AttentionCall& call) const override {
    if (std::optional<std::string> reason = unsupported(call)) return reason;
    check_call(call);
    const c10::DeviceGuard guard(call.q.device());
    const std::string& failure = plan(plan_key(call))->failure;
    if (failure.empty()) return std::nullopt;
    return fmt::format("cuDNN has no plan: {}", failure);
  }

 private:
  LinearOperand quantised_rows(const AttentionCall& call) const override {
    const QuantizedAttention x =
        quantize_attention(call.q, call.k, call.v, call.lengths->k_device, KernelPolicy::strict);
    const Tensor out = at::empty_like(x.q);
    const Tensor most = at::empty({2, 4}, x.scales.options());  // each aligned as a tensor
    std::unordered_map<std::int64_t, void*> pointers = {
        {kQ, x.q.data_ptr()},
        {kK, x.keys.data_ptr()},
        {kV, x.values.data_ptr()},
        {kOut, out.data_ptr()},
        {kQueries, call.lengths->q_device.data_ptr()},
        {kKeys, call.lengths->k_device.data_ptr()},
        {kMostWeight, most.data_ptr<float>()},
        {kMostOut, most.data_ptr<float>() + 4},
    };
    for (int i = 0; i < kAttentionScales; ++i)
      pointers[kScales + i] = x.scales.data_ptr<float>() + 4 * i;
    execute_cudnn_plan(*plan(plan_key(call)), name(), std::move(pointers), call.q.options());
    return {out.flatten(1), x.row_scales};
  }

  std::shared_ptr<CudnnPlan> plan(const PlanKey& key) const {
    const std::lock_guard lock(mutex_);
    std::shared_ptr<CudnnPlan>& entry = plans_[key];
    if (entry == nullptr)
      entry = build_cudnn_plan([&key](fe::graph::Graph& graph) { describe(graph, key); });
    return entry;
  }

  mutable std::mutex mutex_;  // guards plans_
  mutable std::map<PlanKey, std::shared_ptr<CudnnPlan>> plans_;
};

}  // namespace

std::optional<std::string> cudnn_fp8_unavailable(at::Device device) {
  if (std::optional<std::string> reason = cudnn_unavailable(device)) return reason;
  const ComputeCapability capability = compute_capability(device).value();
  if (capability.major < 9) {
    return fmt::format("needs compute capability 9.0 or newer, found {}.{}", capability.major,
                       capability.minor);
  }
  const std::size_t version = cudnnGetVersion();
  if (version < kMinVersion)
    return fmt::format("needs cuDNN 9.7 or newer, found version {}", version);
  return std::nullopt;
}

std::unique_ptr<AttentionBackend> make_cudnn_fp8(at::Device /*device*/) {
  return std::make_unique<CudnnFp8Attention>();
}

}  // namespace diptych
