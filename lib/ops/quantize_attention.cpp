#include "lib/ops/quantize_attention.h"

#include <algorithm>
#include <limits>
#include <vector>

#include "kernels/hopper_fp8_attention/hopper_fp8_attention.h"
#include "kernels/quantize_attention/quantize_attention.h"
#include "lib/ops/checks.h"
#include "lib/ops/kernel_call.h"
#include "lib/ops/launch_label.h"

namespace diptych {
namespace {

constexpr const char* kOp = "quantize_attention";
constexpr double kLimit = kernels::stored_limit(kernels::Stored::e4m3);

void check_arguments(const Tensor& q, const Tensor& keys, const Tensor& values,
                     const Tensor& key_counts) {
  TORCH_CHECK(
      q.defined() && q.dim() == 3 && keys.defined() && keys.dim() == 4, "[", kOp,
      "] expected q [rows, heads, head_dim] and keys [samples, capacity, kv_heads, head_dim]");
  ops::check_values(kOp, "q", q, q.sizes());
  ops::check_values(kOp, "keys", keys, {keys.size(0), keys.size(1), keys.size(2), q.size(2)}, q);
  ops::check_values(kOp, "values", values, keys.sizes(), q);
  ops::check_table(kOp, "key_counts", key_counts, at::kInt, {keys.size(0)}, q);
  TORCH_CHECK(ops::heads_packed(q) && ops::heads_packed(keys) && ops::heads_packed(values), "[",
              kOp, "] the heads of q, keys or values are not packed");
  TORCH_CHECK(q.size(2) == kernels::kValueBlockDims, "[", kOp, "] heads of ", q.size(2),
              ", expected 128");
}

QuantizedAttention empty_like(const Tensor& q, const Tensor& keys) {
  const auto e4m3 = q.options().dtype(at::kFloat8_e4m3fn), number = q.options().dtype(at::kFloat);
  const std::int64_t blocks = kernels::hopper_fp8_value_blocks(keys.size(1));
  return {at::empty(q.sizes(), e4m3), at::empty(keys.sizes(), e4m3),
          at::empty({keys.size(0), keys.size(2), blocks, kernels::kValueBlockBytes}, e4m3),
          at::empty({kernels::kAttentionScales}, number), at::empty({q.size(0)}, number)};
}

// -> its scale, float32 [1]
Tensor quantize_together(const Tensor& rows, const Tensor& used, const Tensor& into) {
  const Tensor wide = rows.to(at::kFloat).masked_fill(used.logical_not(), 0.0);
  // Divided by a tensor: by a number it would be multiplied with the reciprocal on CUDA.
  const Tensor scale = wide.abs()
                           .amax()
                           .div(at::full({1}, kLimit, wide.options()))
                           .clamp_min(std::numeric_limits<float>::min());
  const Tensor scaled = wide.mul(scale.reciprocal()).clamp(-kLimit, kLimit);
  into.copy_(scaled.masked_fill(used.logical_not(), 0.0));
  return scale;
}

// Rows of values into blocks of them.
void write_blocks(const Tensor& rows, const Tensor& blocks) {
  using kernels::kValueBlockDims, kernels::kValueBlockKeys;
  const std::int64_t samples = rows.size(0), heads = rows.size(2), count = blocks.size(2);
  std::vector<std::int64_t> from(kernels::kValueBlockBytes);  // of each place
  for (std::int64_t key = 0; key < kValueBlockKeys; ++key) {
    for (std::int64_t dim = 0; dim < kValueBlockDims; ++dim)
      from[static_cast<std::size_t>(kernels::place_in_value_block(key, dim))] =
          key * kValueBlockDims + dim;
  }
  const Tensor padded = at::zeros({samples, count * kValueBlockKeys, heads, kValueBlockDims},
                                  rows.options().dtype(at::kByte));
  padded.narrow(1, 0, rows.size(1)).copy_(rows.view(at::kByte));
  const Tensor in_blocks = padded.view({samples, count, kValueBlockKeys, heads, kValueBlockDims})
                               .permute({0, 3, 1, 2, 4})
                               .reshape(blocks.sizes());
  blocks.view(at::kByte).copy_(
      in_blocks.index_select(3, at::tensor(from, at::kLong).to(rows.device())));
}

void reference(const Tensor& q, const Tensor& keys, const Tensor& values, const Tensor& key_counts,
               const QuantizedAttention& into) {
  into.q.copy_((q.to(at::kFloat) / kernels::kNormedQueryScale).clamp(-kLimit, kLimit));
  const Tensor used = at::arange(keys.size(1), key_counts.options())
                          .unsqueeze(0)
                          .lt(key_counts.unsqueeze(1))
                          .view({keys.size(0), keys.size(1), 1, 1});
  const Tensor key_scale = quantize_together(keys, used, into.keys);
  const Tensor value_rows = at::empty(keys.sizes(), into.values.options());
  const Tensor value_scale = quantize_together(values, used, value_rows);
  write_blocks(value_rows, into.values);
  into.row_scales.copy_(value_scale.expand(into.row_scales.sizes()));
  into.scales.copy_(at::cat(
      {at::full({1}, kernels::kNormedQueryScale, value_scale.options()), key_scale, value_scale}));
}

}  // namespace

QuantizedAttention quantize_attention(const Tensor& q, const Tensor& keys, const Tensor& values,
                                      const Tensor& key_counts, KernelPolicy policy) {
  check_arguments(q, keys, values, key_counts);
  const LaunchLabel label(launch_names::kQuantiseAttention);
  const QuantizedAttention into = empty_like(q, keys);
  if (!ops::takes_kernel(kOp, q, policy)) {
    reference(q, keys, values, key_counts, into);
    return into;
  }
  kernels::QuantizeAttentionArgs args;
  args.q = q.data_ptr();
  args.keys = keys.data_ptr();
  args.values = values.data_ptr();
  args.key_counts = key_counts.data_ptr<std::int32_t>();
  args.q_values = into.q.data_ptr();
  args.key_values = into.keys.data_ptr();
  args.value_values = into.values.data_ptr();
  args.scales = into.scales.data_ptr<float>();
  args.row_scales = into.row_scales.data_ptr<float>();
  const Tensor most = at::empty({kernels::kQuantizeAttentionScratch}, q.options().dtype(at::kInt));
  args.most = reinterpret_cast<std::uint32_t*>(most.data_ptr<std::int32_t>());
  args.rows = q.size(0);
  args.q_width = q.size(1) * q.size(2);
  args.samples = keys.size(0);
  args.capacity = keys.size(1);
  args.kv_width = keys.size(2) * keys.size(3);
  args.q_stride = ops::stride_of(q, 0);
  args.key_stride = ops::stride_of(keys, 0);
  args.value_stride = ops::stride_of(values, 0);
  args.key_row_stride = ops::stride_of(keys, 1);
  args.value_row_stride = ops::stride_of(values, 1);
  args.value_blocks = into.values.size(2);
  args.dtype = ops::kernel_dtype(q);
  ops::launch(args, q.device());
  return into;
}

bool quantize_attention_takes(const Tensor& q, const Tensor& keys) {
  const std::int64_t padded =
      kernels::hopper_fp8_value_blocks(keys.size(1)) * kernels::kValueBlockKeys;
  const std::int64_t values = keys.size(0) * padded * keys.size(2) * keys.size(3);
  return std::max(q.numel(), values) <= std::numeric_limits<std::int32_t>::max();
}

}  // namespace diptych
