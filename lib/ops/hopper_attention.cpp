#include "lib/ops/hopper_attention.h"

#include "kernels/hopper_attention/hopper_attention.h"
#include "lib/ops/checks.h"
#include "lib/ops/kernel_call.h"

namespace diptych {
namespace {

constexpr const char* kOp = "hopper_attention";
constexpr std::int64_t kHeadDim = kHopperHeadDim;
static_assert(kHeadDim == kernels::kHopperHeadDim);

void check_arguments(const HopperAttention& a) {
  const Tensor &q = a.q, &keys = a.keys;
  TORCH_CHECK(q.defined() && q.dim() == 3 && keys.defined() && keys.dim() == 4, "[", kOp,
              "] expected q [rows, heads, head_dim] and keys [samples, capacity, kv_heads, "
              "head_dim]");
  const std::int64_t samples = keys.size(0);
  ops::check_values(kOp, "q", q, {q.size(0), q.size(1), kHeadDim});
  ops::check_values(kOp, "keys", keys, {samples, keys.size(1), keys.size(2), kHeadDim}, q);
  ops::check_values(kOp, "values", a.values, keys.sizes(), q);
  TORCH_CHECK(ops::heads_packed(keys) && ops::heads_packed(a.values), "[", kOp,
              "] the heads of keys or values are not packed");
  ops::check_table(kOp, "key_counts", a.key_counts, at::kInt, {samples}, q);
  ops::check_table(kOp, "query_starts", a.query_starts, at::kInt, {samples + 1}, q);
  TORCH_CHECK(static_cast<std::int64_t>(a.queries.size()) == samples, "[", kOp, "] ",
              a.queries.size(), " numbers of queries for ", samples, " samples");
  TORCH_CHECK(a.scale > 0, "[", kOp, "] scale is ", a.scale, ", expected > 0");
  if (const Tensor& bias = a.last_key_bias; bias.defined()) {
    TORCH_CHECK(bias.scalar_type() == at::kFloat && bias.sizes() == at::IntArrayRef({samples}) &&
                    bias.device() == q.device() && bias.is_contiguous(),
                "[", kOp, "] last_key_bias is ", bias.scalar_type(), " ", bias.sizes());
  }
  ops::check_log_sum_exp(kOp, a.log_sum_exp, q);
}

// Of a dimension; `packed` of one with a single element, which may carry any.
std::int64_t stride_or_packed(const Tensor& t, std::int64_t dim, std::int64_t packed) {
  return t.size(dim) == 1 ? packed : t.stride(dim);
}

// All but what is written.
kernels::HopperAttentionArgs kernel_args(const HopperAttention& a) {
  kernels::HopperAttentionArgs args;
  const Tensor &q = a.q, &keys = a.keys;
  args.q = q.const_data_ptr();
  args.keys = keys.const_data_ptr();
  args.values = a.values.const_data_ptr();
  args.key_counts = a.key_counts.const_data_ptr<std::int32_t>();
  args.query_starts = a.query_starts.const_data_ptr<std::int32_t>();
  args.rows = q.size(0);
  args.samples = keys.size(0);
  args.heads = q.size(1);
  args.kv_heads = keys.size(2);
  args.capacity = keys.size(1);
  for (const std::int64_t queries : a.queries) {
    args.query_tiles += kernels::hopper_query_tiles(queries);
    args.query_tile_pairs += kernels::hopper_query_tile_pairs(queries);
  }
  args.q_head_stride = stride_or_packed(q, 1, kHeadDim);
  args.q_stride = stride_or_packed(q, 0, args.heads * args.q_head_stride);
  args.key_stride = stride_or_packed(keys, 1, args.kv_heads * kHeadDim);
  args.value_stride = stride_or_packed(a.values, 1, args.kv_heads * kHeadDim);
  args.key_sample_stride = stride_or_packed(keys, 0, args.capacity * args.key_stride);
  args.value_sample_stride = stride_or_packed(a.values, 0, args.capacity * args.value_stride);
  if (a.last_key_bias.defined()) args.last_key_bias = a.last_key_bias.const_data_ptr<float>();
  args.scale = static_cast<float>(a.scale);
  args.causal = a.causal;
  args.dtype = ops::kernel_dtype(q);
  return args;
}

}  // namespace

Tensor hopper_attention(const HopperAttention& args) {
  check_arguments(args);
  Tensor out = at::empty(args.q.sizes(), args.q.options());
  if (args.q.size(0) == 0) return out;
  kernels::HopperAttentionArgs call = kernel_args(args);
  call.out = out.data_ptr();
  if (const Tensor& sums = args.log_sum_exp; sums.defined()) {
    call.log_sum_exp = sums.data_ptr<float>();
    call.log_sum_exp_stride = sums.stride(0);
    call.log_sum_exp_head_stride = sums.stride(1);
  }
  ops::launch(call, args.q.device());
  return out;
}

std::optional<std::string> hopper_attention_unsupported(const HopperAttention& args) {
  const char* reason = kernels::hopper_attention_unsupported(kernel_args(args));
  return reason == nullptr ? std::nullopt : std::optional<std::string>(reason);
}

bool has_hopper_attention(at::Device device) {
  TORCH_CHECK(!device.is_cuda() || device.has_index(), "[", kOp, "] a device without its index");
  return device.is_cuda() && ops::has_hopper_attention(device);
}

}  // namespace diptych
