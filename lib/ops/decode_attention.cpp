#include "lib/ops/checks.h"
#include "lib/ops/kernel_call.h"
#include "lib/ops/ops.h"

namespace diptych {
namespace {

constexpr const char* kOp = "decode_attention";

void check_arguments(const Tensor& q, const Tensor& keys, const Tensor& values,
                     const Tensor& key_count, double scale) {
  TORCH_CHECK(q.defined() && q.dim() == 2 && keys.defined() && keys.dim() == 3, "[", kOp,
              "] expected q [heads, head_dim] and keys [capacity, kv_heads, head_dim]");
  ops::check_values(kOp, "q", q, q.sizes());
  ops::check_values(kOp, "keys", keys, {keys.size(0), keys.size(1), q.size(1)}, q);
  ops::check_values(kOp, "values", values, keys.sizes(), q);
  ops::check_table(kOp, "key_count", key_count, at::kInt, {1}, q);
  TORCH_CHECK(q.is_contiguous() && keys.is_contiguous() && values.is_contiguous(), "[", kOp,
              "] q, keys or values are not contiguous");
  TORCH_CHECK(keys.size(0) >= 1 && keys.size(1) >= 1 && q.size(0) % keys.size(1) == 0, "[", kOp,
              "] ", q.size(0), " heads over keys ", keys.sizes());
  TORCH_CHECK(scale > 0, "[", kOp, "] scale is ", scale, ", expected > 0");
}

Tensor reference(const Tensor& q, const Tensor& keys, const Tensor& values, const Tensor& key_count,
                 double scale) {
  const std::int64_t count =
      std::clamp<std::int64_t>(key_count.item<std::int32_t>(), 1, keys.size(0));
  const std::int64_t group = q.size(0) / keys.size(1);
  const auto per_head = [&](const Tensor& rows) {  // [heads, count, head_dim]
    return rows.narrow(0, 0, count).to(at::kFloat).transpose(0, 1).repeat_interleave(group, 0);
  };
  const Tensor logits =
      at::bmm(per_head(keys), q.to(at::kFloat).unsqueeze(2)).mul_(scale);  // [heads, count, 1]
  return at::bmm(at::softmax(logits, 1).transpose(1, 2), per_head(values))
      .squeeze(1)
      .to(q.scalar_type());
}

}  // namespace

Tensor decode_attention(const Tensor& q, const Tensor& keys, const Tensor& values,
                        const Tensor& key_count, double scale, KernelPolicy policy) {
  check_arguments(q, keys, values, key_count, scale);
  if (!ops::takes_kernel(kOp, q, policy)) return reference(q, keys, values, key_count, scale);
  const Tensor out = at::empty(q.sizes(), q.options());
  kernels::DecodeAttentionArgs args;
  args.q = q.data_ptr();
  args.keys = keys.data_ptr();
  args.values = values.data_ptr();
  args.key_count = key_count.data_ptr<std::int32_t>();
  args.out = out.data_ptr();
  args.heads = q.size(0);
  args.kv_heads = keys.size(1);
  args.head_dim = q.size(1);
  args.capacity = keys.size(0);
  args.scale = static_cast<float>(scale);
  args.dtype = ops::kernel_dtype(q);
  const Tensor parts =
      at::empty({kernels::decode_attention_scratch(args)}, q.options().dtype(at::kFloat));
  args.parts = parts.data_ptr<float>();
  ops::launch(args, q.device());
  return out;
}

std::optional<std::string> decode_attention_unsupported([[maybe_unused]] std::int64_t heads,
                                                        [[maybe_unused]] std::int64_t kv_heads,
                                                        [[maybe_unused]] std::int64_t head_dim,
                                                        [[maybe_unused]] at::ScalarType dtype) {
#if DIPTYCH_HAVE_CUDA
  kernels::DecodeAttentionArgs args;
  args.heads = heads;
  args.kv_heads = kv_heads;
  args.head_dim = head_dim;
  args.capacity = 1;
  args.dtype = ops::kernel_dtype(at::empty({0}, dtype));
  const char* reason = kernels::decode_attention_unsupported(args);
  return reason == nullptr ? std::nullopt : std::optional<std::string>(reason);
#else
  return "this build is without CUDA";
#endif
}

}  // namespace diptych
