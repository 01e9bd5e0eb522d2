#include <algorithm>
#include <limits>

#include "lib/ops/checks.h"
#include "lib/ops/kernel_call.h"
#include "lib/ops/ops.h"

namespace diptych {
namespace {

constexpr const char* kOp = "decode_attention";

// Why the tensors do not lie as the op takes them, or nothing.
const char* layout_unsupported(const DecodeAttention& a) {
  if (!ops::heads_packed(a.q) || !ops::heads_packed(a.keys) || !ops::heads_packed(a.values))
    return "the heads of a row of q, keys or values are not packed";
  if (ops::stride_of(a.keys, 0) != ops::stride_of(a.values, 0) ||
      ops::stride_of(a.keys, 1) != ops::stride_of(a.values, 1))
    return "keys and values have different strides";
  return nullptr;
}

void check_arguments(const DecodeAttention& a) {
  const Tensor &q = a.q, &keys = a.keys;
  TORCH_CHECK(q.defined() && q.dim() == 3 && keys.defined() && keys.dim() == 4, "[", kOp,
              "] expected q [rows, heads, head_dim] and keys [samples, capacity, kv_heads, "
              "head_dim]");
  const std::int64_t samples = keys.size(0);
  ops::check_values(kOp, "q", q, q.sizes());
  ops::check_values(kOp, "keys", keys, {samples, keys.size(1), keys.size(2), q.size(2)}, q);
  ops::check_values(kOp, "values", a.values, keys.sizes(), q);
  ops::check_table(kOp, "key_count", a.key_count, at::kInt, {samples}, q);
  if (a.query_starts.defined())
    ops::check_table(kOp, "query_starts", a.query_starts, at::kInt, {samples + 1}, q);
  TORCH_CHECK(samples == 1 || a.query_starts.defined(), "[", kOp, "] ", samples,
              " samples without query_starts");
  const char* layout = layout_unsupported(a);
  TORCH_CHECK(layout == nullptr, "[", kOp, "] ", layout, ": strides ", q.strides(), ", ",
              keys.strides(), ", ", a.values.strides());
  TORCH_CHECK(samples >= 1 && keys.size(1) >= 1 && keys.size(2) >= 1 && q.size(2) >= 1 &&
                  q.size(1) >= 1 && q.size(1) % keys.size(2) == 0,
              "[", kOp, "] q ", q.sizes(), " over keys ", keys.sizes());
  TORCH_CHECK(a.scale > 0, "[", kOp, "] scale is ", a.scale, ", expected > 0");
}

// Rows of one sample, q [rows, heads, head_dim] over keys [count, kv_heads, head_dim].
Tensor attend(const Tensor& q, const Tensor& keys, const Tensor& values, double scale,
              bool causal) {
  const std::int64_t group = q.size(1) / keys.size(1);
  const auto per_head = [&](const Tensor& rows) {  // [heads, count, head_dim]
    return rows.to(at::kFloat).transpose(0, 1).repeat_interleave(group, 0);
  };
  const Tensor queries = q.to(at::kFloat).permute({1, 2, 0});          // [heads, head_dim, rows]
  const Tensor logits = at::bmm(per_head(keys), queries).mul_(scale);  // [heads, count, rows]
  if (causal) {
    const std::int64_t rows = q.size(0), count = keys.size(0);
    const Tensor hidden =
        at::ones({count, rows}, logits.options().dtype(at::kBool)).tril(rows - count - 1);
    logits.masked_fill_(hidden, -std::numeric_limits<float>::infinity());
  }
  return at::bmm(at::softmax(logits, 1).transpose(1, 2), per_head(values))
      .transpose(0, 1)
      .to(q.scalar_type());
}

Tensor reference(const DecodeAttention& a) {
  const Tensor counts = a.key_count.cpu();
  const Tensor starts = a.query_starts.defined()
                            ? a.query_starts.cpu()
                            : at::tensor({std::int64_t{0}, a.q.size(0)}, at::kInt);
  Tensor out = at::empty(a.q.sizes(), a.q.options());
  for (std::int64_t sample = 0; sample < a.keys.size(0); ++sample) {
    const std::int64_t first = starts[sample].item<std::int32_t>();
    const std::int64_t rows = starts[sample + 1].item<std::int32_t>() - first;
    const std::int64_t count =
        std::clamp<std::int64_t>(counts[sample].item<std::int32_t>(), 1, a.keys.size(1));
    if (rows == 0) continue;
    out.narrow(0, first, rows)
        .copy_(attend(a.q.narrow(0, first, rows), a.keys[sample].narrow(0, 0, count),
                      a.values[sample].narrow(0, 0, count), a.scale, a.causal));
  }
  return out;
}

// All but what is written.
kernels::DecodeAttentionArgs kernel_args(const DecodeAttention& a) {
  kernels::DecodeAttentionArgs args;
  args.q = a.q.const_data_ptr();
  args.keys = a.keys.const_data_ptr();
  args.values = a.values.const_data_ptr();
  args.key_count = a.key_count.const_data_ptr<std::int32_t>();
  if (a.query_starts.defined()) args.query_starts = a.query_starts.const_data_ptr<std::int32_t>();
  args.rows = a.q.size(0);
  args.samples = a.keys.size(0);
  args.heads = a.q.size(1);
  args.kv_heads = a.keys.size(2);
  args.head_dim = a.q.size(2);
  args.capacity = a.keys.size(1);
  args.q_stride = ops::stride_of(a.q, 0);
  args.key_stride = ops::stride_of(a.keys, 1);
  args.sample_stride = ops::stride_of(a.keys, 0);
  args.scale = static_cast<float>(a.scale);
  args.causal = a.causal;
  args.most_rows = a.most_rows;
  args.dtype = ops::kernel_dtype(a.q);
  return args;
}

std::optional<std::string> kernel_unsupported(
    [[maybe_unused]] const kernels::DecodeAttentionArgs& args) {
#if DIPTYCH_HAVE_CUDA
  const char* reason = kernels::decode_attention_unsupported(args);
  return reason == nullptr ? std::nullopt : std::optional<std::string>(reason);
#else
  return "this build is without CUDA";
#endif
}

}  // namespace

Tensor decode_attention(const DecodeAttention& args, KernelPolicy policy) {
  check_arguments(args);
  if (!ops::takes_kernel(kOp, args.q, policy)) return reference(args);
  Tensor out = at::empty(args.q.sizes(), args.q.options());
  if (args.q.size(0) == 0) return out;
  kernels::DecodeAttentionArgs call = kernel_args(args);
  const Tensor parts =
      at::empty({kernels::decode_attention_scratch(call)}, args.q.options().dtype(at::kFloat));
  call.out = out.data_ptr();
  call.parts = parts.data_ptr<float>();
  ops::launch(call, args.q.device());
  return out;
}

std::optional<std::string> decode_attention_unsupported(const DecodeAttention& args) {
  if (const char* reason = layout_unsupported(args)) return reason;
  return kernel_unsupported(kernel_args(args));
}

std::optional<std::string> decode_attention_unsupported(std::int64_t heads, std::int64_t kv_heads,
                                                        std::int64_t head_dim,
                                                        at::ScalarType dtype) {
  kernels::DecodeAttentionArgs args;
  args.rows = args.samples = args.capacity = 1;
  args.heads = heads;
  args.kv_heads = kv_heads;
  args.head_dim = head_dim;
  args.dtype = ops::kernel_dtype(at::empty({0}, dtype));
  return kernel_unsupported(args);
}

}  // namespace diptych
