// cuDNN's fused attention through cudnn-frontend (github.com/NVIDIA/cudnn-frontend, the SDPA
// graph), with per-sample lengths instead of a mask: the key dimension of a plan is the capacity,
// and seq_len_kv on the device bounds the work of each sample. A plan depends on the sizes, not on
// the lengths, so the steps of a run share one. Samples with unequal numbers of queries are served
// in runs of equal ones.
#include <algorithm>
#include <compare>
#include <map>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <unordered_map>

#include <ATen/cudnn/Handle.h>

#define CUDNN_FRONTEND_SKIP_JSON_LIB
#include <cudnn_frontend.h>

#include "lib/attention/backends.h"
#include "lib/base/error.h"

namespace diptych {
namespace {

namespace fe = cudnn_frontend;

using GraphTensor = std::shared_ptr<fe::graph::Tensor_attributes>;

// Its dtype is the graph's.
GraphTensor add_tensor(fe::graph::Graph& graph, std::int64_t uid, std::vector<std::int64_t> sizes,
                       std::vector<std::int64_t> strides) {
  return graph.tensor(fe::graph::Tensor_attributes()
                          .set_uid(uid)
                          .set_dim(std::move(sizes))
                          .set_stride(std::move(strides)));
}

struct Plan {
  fe::graph::Graph graph;
  std::int64_t workspace_bytes = 0;
  std::string failure;  // why there is none, or empty
};

// 9.6 is the first version whose lower-right causal mask takes lengths that are no multiples of 64
// (cudnn-frontend, node/sdpa_support_surface.h).
constexpr std::size_t kMinVersion = 90600;

enum Uid : std::int64_t { kQ = 1, kK, kV, kOut, kQueries, kKeys };

// Everything that a plan is built from.
struct PlanKey {
  at::ScalarType dtype;
  c10::DeviceIndex device;
  std::int64_t samples, queries, heads, kv_heads, head_dim, capacity;
  std::int64_t q_row, q_head, k_sample, k_row, v_sample, v_row;  // strides in elements
  bool causal;
  double scale;
  auto operator<=>(const PlanKey&) const = default;
};

// The samples [first, first + samples) have the same number of queries, from row first_query on.
struct Run {
  std::int64_t first, samples, queries, first_query;
};

std::vector<Run> runs_of_equal_queries(const AttentionLengths& lengths) {
  std::vector<Run> runs;
  for_each_sample(lengths, [&runs](const SampleRows& rows) {
    if (!runs.empty() && runs.back().queries == rows.queries) {
      ++runs.back().samples;
    } else {
      runs.push_back({rows.sample, 1, rows.queries, rows.first_query});
    }
  });
  return runs;
}

PlanKey plan_key(const AttentionCall& call, const Run& run) {
  // One sample has no stride; a fixed value lets all such calls share a plan.
  const auto apart = [&run](const Tensor& keys) {
    return run.samples == 1 ? keys.size(1) * keys.stride(1) : keys.stride(0);
  };
  return {call.q.scalar_type(),
          call.q.device().index(),
          run.samples,
          run.queries,
          call.q.size(1),
          call.k.size(2),
          call.q.size(2),
          call.k.size(1),
          call.q.stride(0),
          call.q.stride(1),
          apart(call.k),
          call.k.stride(1),
          apart(call.v),
          call.v.stride(1),
          call.causal && run.queries > 1,  // the last query sees every key
          call.scale};
}

// cuDNN's order of dimensions is [samples, heads, rows, head_dim]; the strides are ours.
void describe(fe::graph::Graph& graph, const PlanKey& key,
              fe::AttentionImplementation_t implementation) {
  graph.set_io_data_type(key.dtype == at::kHalf ? fe::DataType_t::HALF : fe::DataType_t::BFLOAT16)
      .set_intermediate_data_type(fe::DataType_t::FLOAT)
      .set_compute_data_type(fe::DataType_t::FLOAT);
  const std::vector<std::int64_t> q_sizes = {key.samples, key.heads, key.queries, key.head_dim};
  const std::vector<std::int64_t> k_sizes = {key.samples, key.kv_heads, key.capacity, key.head_dim};
  const GraphTensor q =
      add_tensor(graph, kQ, q_sizes, {key.queries * key.q_row, key.q_head, key.q_row, 1});
  const GraphTensor k = add_tensor(graph, kK, k_sizes, {key.k_sample, key.head_dim, key.k_row, 1});
  const GraphTensor v = add_tensor(graph, kV, k_sizes, {key.v_sample, key.head_dim, key.v_row, 1});
  const auto lengths = [&](Uid uid) {
    GraphTensor numbers = add_tensor(graph, uid, {key.samples, 1, 1, 1}, {1, 1, 1, 1});
    numbers->set_data_type(fe::DataType_t::INT32);
    return numbers;
  };
  auto options = fe::graph::SDPA_attributes()
                     .set_name("attention")
                     .set_generate_stats(false)
                     .set_attn_scale(static_cast<float>(key.scale))
                     .set_padding_mask(true)
                     .set_seq_len_q(lengths(kQueries))
                     .set_seq_len_kv(lengths(kKeys))
                     .set_implementation(implementation);
  if (key.causal) {
    options.set_diagonal_alignment(fe::DiagonalAlignment_t::BOTTOM_RIGHT)
        .set_diagonal_band_right_bound(0);
  }
  const auto outputs = graph.sdpa(q, k, v, options);
  const std::int64_t row = key.heads * key.head_dim;
  outputs[0]->set_uid(kOut).set_output(true).set_dim(q_sizes).set_stride(
      {key.queries * row, key.head_dim, row, 1});
}

// For the current device; takes some 40 ms.
std::shared_ptr<Plan> try_build(const PlanKey& key, fe::AttentionImplementation_t implementation) {
  auto plan = std::make_shared<Plan>();
  try {  // a graph that no implementation takes is an exception, everything else an error value
    describe(plan->graph, key, implementation);
    fe::error_t status = plan->graph.build(at::native::getCudnnHandle(),
                                           {fe::HeurMode_t::A, fe::HeurMode_t::FALLBACK});
    if (status.is_good()) status = plan->graph.get_workspace_size(plan->workspace_bytes);
    if (status.is_bad()) plan->failure = status.get_message();
    if (status.is_bad() && plan->failure.empty()) plan->failure = "no reason given";
  } catch (const std::runtime_error& error) {
    plan->failure = error.what();
  }
  std::replace(plan->failure.begin(), plan->failure.end(), '\n', ' ');
  return plan;
}

std::shared_ptr<Plan> build(const PlanKey& key) {
  // The frontend's choice first; the older composition of single operations has engines for more
  // sizes.
  const auto plan = try_build(key, fe::AttentionImplementation_t::AUTO);
  if (plan->failure.empty()) return plan;
  const auto composite = try_build(key, fe::AttentionImplementation_t::COMPOSITE);
  return composite->failure.empty() ? composite : plan;
}

class CudnnAttention final : public AttentionBackend {
 public:
  explicit CudnnAttention(at::Device device)
      : max_head_dim_(compute_capability(device).value().major >= 9 ? 256 : 128) {}

  std::string_view name() const override { return "cudnn"; }
  bool reads_lengths_on_device() const override { return true; }

  std::optional<std::string> kind_unsupported(const AttentionKind& kind) const override {
    return half_precision_unsupported(kind, max_head_dim_);
  }

  std::optional<std::string> unsupported(const AttentionCall& call) const override {
    if (std::optional<std::string> reason = kind_unsupported(kind_of(call))) return reason;
    if (std::optional<std::string> reason = extras_unsupported(call)) return reason;
    return alignment_unsupported(call);
  }

  std::optional<std::string> prepare(const AttentionCall& call) const override {
    if (std::optional<std::string> reason = unsupported(call)) return reason;
    check_call(call);
    const c10::DeviceGuard guard(call.q.device());
    for (const Run& run : runs_of_equal_queries(*call.lengths)) {
      const std::string& failure = plan(plan_key(call, run))->failure;
      if (!failure.empty()) return fmt::format("cuDNN has no plan: {}", failure);
    }
    return std::nullopt;
  }

  Tensor forward(const AttentionCall& call) const override {
    check_call(call);
    require_supported(*this, call);
    const c10::DeviceGuard guard(call.q.device());
    Tensor out = at::empty(call.q.sizes(), call.q.options());
    for (const Run& run : runs_of_equal_queries(*call.lengths))
      execute(*plan(plan_key(call, run)), call, run, out);
    return out;
  }

 private:
  // On the current stream. Throws InputError where there is no plan, RunError where it fails.
  static void execute(Plan& plan, const AttentionCall& call, const Run& run, Tensor& out) {
    if (!plan.failure.empty())
      throw InputError("attention backend cudnn: cuDNN has no plan: {}", plan.failure);
    const auto rows = [&run](const Tensor& packed) {
      return packed.narrow(0, run.first_query, run.samples * run.queries).data_ptr();
    };
    const auto samples = [&run](const Tensor& tensor) {
      return tensor.narrow(0, run.first, run.samples).data_ptr();
    };
    std::unordered_map<std::int64_t, void*> pointers = {
        {kQ, rows(call.q)},
        {kK, samples(call.k)},
        {kV, samples(call.v)},
        {kOut, rows(out)},
        {kQueries, samples(call.lengths->q_device)},
        {kKeys, samples(call.lengths->k_device)},
    };
    // Freed when this returns, used when the kernel runs: the caching allocator hands it on only to
    // later work of this stream.
    const Tensor workspace = at::empty({std::max<std::int64_t>(plan.workspace_bytes, 16)},
                                       call.q.options().dtype(at::kByte));
    fe::error_t status =  // the handle is set to the current stream
        plan.graph.execute(at::native::getCudnnHandle(), pointers, workspace.data_ptr());
    if (status.is_bad()) throw RunError("cuDNN attention failed: {}", status.get_message());
  }

  std::shared_ptr<Plan> plan(const PlanKey& key) const {
    const std::lock_guard lock(mutex_);
    std::shared_ptr<Plan>& entry = plans_[key];
    if (entry == nullptr) entry = build(key);
    return entry;
  }

  std::int64_t max_head_dim_;
  mutable std::mutex mutex_;  // guards plans_
  mutable std::map<PlanKey, std::shared_ptr<Plan>> plans_;
};

}  // namespace

std::optional<std::string> cudnn_unavailable(at::Device device) {
  if (std::optional<std::string> reason = flash_unavailable(device)) return reason;
  const std::size_t version = cudnnGetVersion();
  if (version < kMinVersion) {
    return fmt::format("needs cuDNN 9.6 or newer, found version {}", version);
  }
  return std::nullopt;
}

std::unique_ptr<AttentionBackend> make_cudnn(at::Device device) {
  return std::make_unique<CudnnAttention>(device);
}

}  // namespace diptych
