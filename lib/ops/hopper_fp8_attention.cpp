#include "lib/ops/hopper_fp8_attention.h"

#include "kernels/hopper_fp8_attention/hopper_fp8_attention.h"
#include "lib/ops/checks.h"
#include "lib/ops/kernel_call.h"

namespace diptych {
namespace {

constexpr const char* kOp = "hopper_fp8_attention";
constexpr std::int64_t kHeadDim = kernels::kValueBlockDims;

void check_arguments(const HopperFp8Attention& a) {
  const auto& [q, keys, values, scales, row_scales] = a.operands;
  TORCH_CHECK(q.defined() && q.dim() == 3 && keys.defined() && keys.dim() == 4, "[", kOp,
              "] expected q [rows, heads, head_dim] and keys [samples, capacity, kv_heads, "
              "head_dim]");
  const std::int64_t samples = keys.size(0),
                     blocks = kernels::hopper_fp8_value_blocks(keys.size(1));
  const auto check = [&q](const char* name, const Tensor& t, at::IntArrayRef sizes) {
    TORCH_CHECK(t.scalar_type() == at::kFloat8_e4m3fn && t.sizes() == sizes && t.is_contiguous() &&
                    t.device() == q.device(),
                "[", kOp, "] ", name, " is ", t.scalar_type(), " ", t.sizes(), ", expected e4m3 ",
                sizes, ", packed");
  };
  check("q", q, {q.size(0), q.size(1), kHeadDim});
  check("keys", keys, {samples, keys.size(1), keys.size(2), kHeadDim});
  check("values", values, {samples, keys.size(2), blocks, kernels::kValueBlockBytes});
  TORCH_CHECK(scales.scalar_type() == at::kFloat && scales.device() == q.device() &&
                  scales.sizes() == at::IntArrayRef({kAttentionScales}) && scales.is_contiguous(),
              "[", kOp, "] scales are ", scales.scalar_type(), " ", scales.sizes());
  ops::check_table(kOp, "key_counts", a.key_counts, at::kInt, {samples}, q);
  ops::check_table(kOp, "query_starts", a.query_starts, at::kInt, {samples + 1}, q);
  TORCH_CHECK(static_cast<std::int64_t>(a.queries.size()) == samples, "[", kOp, "] ",
              a.queries.size(), " numbers of queries for ", samples, " samples");
  TORCH_CHECK(a.scale > 0, "[", kOp, "] scale is ", a.scale, ", expected > 0");
  ops::check_log_sum_exp(kOp, a.log_sum_exp, q);
}

}  // namespace

Tensor hopper_fp8_attention(const HopperFp8Attention& a) {
  check_arguments(a);
  const auto& [q, keys, values, scales, row_scales] = a.operands;
  Tensor out = at::empty_like(q);
  if (q.size(0) == 0) return out;
  kernels::HopperFp8AttentionArgs args;
  args.q = q.const_data_ptr();
  args.keys = keys.const_data_ptr();
  args.values = values.const_data_ptr();
  const auto scale = [&](AttentionScale which) {
    return scales.const_data_ptr<float>() + static_cast<int>(which);
  };
  args.q_scale = scale(AttentionScale::q);
  args.key_scale = scale(AttentionScale::keys);
  args.key_counts = a.key_counts.const_data_ptr<std::int32_t>();
  args.query_starts = a.query_starts.const_data_ptr<std::int32_t>();
  args.out = out.data_ptr();
  args.rows = q.size(0);
  args.samples = keys.size(0);
  args.heads = q.size(1);
  args.kv_heads = keys.size(2);
  args.capacity = keys.size(1);
  args.value_blocks = values.size(2);
  for (const std::int64_t queries : a.queries)
    args.query_tile_pairs += kernels::hopper_fp8_query_tile_pairs(queries);
  args.scale = static_cast<float>(a.scale);
  if (const Tensor& sums = a.log_sum_exp; sums.defined()) {
    args.log_sum_exp = sums.data_ptr<float>();
    args.log_sum_exp_stride = sums.stride(0);
    args.log_sum_exp_head_stride = sums.stride(1);
  }
  ops::launch(args, q.device());
  return out;
}

}  // namespace diptych
