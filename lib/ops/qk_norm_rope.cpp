#include "lib/ops/checks.h"
#include "lib/ops/kernel_call.h"
#include "lib/ops/launch_label.h"
#include "lib/ops/ops.h"
#include "lib/ops/row_sets.h"

namespace diptych {
namespace {

constexpr const char *kOp = "qk_norm_rope", *kFused = "rope_attention";

void check_cache(const char* name, const Tensor& cache, const QkNormRope& args) {
  TORCH_CHECK(cache.defined() && cache.dim() == 4, "[", kOp, "] ", name,
              " is not [samples, capacity, kv_heads, head_dim]");
  const std::int64_t d = args.head_dim, row = args.kv_heads * d;
  ops::check_values(kOp, name, cache, {args.keys.size(0), args.keys.size(1), args.kv_heads, d},
                    args.qkv);
  TORCH_CHECK(cache.size(0) >= 1 && cache.size(1) >= 1, "[", kOp, "] ", name,
              " is empty: ", cache.sizes());
  TORCH_CHECK((args.kv_heads == 1 || cache.stride(2) == d) &&
                  (cache.size(1) == 1 || cache.stride(1) == row),
              "[", kOp, "] ", name, " is not contiguous below the sample: strides ",
              cache.strides());
}

void check_arguments(const QkNormRope& args) {
  const std::int64_t d = args.head_dim;
  TORCH_CHECK(d >= 2 && d % 2 == 0 && d <= kernels::kMaxHeadDim, "[", kOp, "] head_dim is ", d,
              ", expected an even number from 2 to ", kernels::kMaxHeadDim);
  TORCH_CHECK(args.heads >= 1 && args.kv_heads >= 1, "[", kOp, "] heads, kv_heads are ", args.heads,
              ", ", args.kv_heads, ", expected at least 1 each");
  TORCH_CHECK(args.eps >= 0, "[", kOp, "] eps is ", args.eps, ", expected >= 0");
  TORCH_CHECK(args.qkv.defined() && args.qkv.dim() == 2, "[", kOp, "] qkv is not [rows, width]");
  const std::int64_t rows = args.qkv.size(0);
  ops::check_values(kOp, "qkv", args.qkv, {rows, (args.heads + 2 * args.kv_heads) * d});
  std::vector<RowSet> sets;
  for (const QkNormRoute& route : args.routes) {
    ops::check_values(kOp, "q_weight", route.q_weight, {d}, args.qkv);
    ops::check_values(kOp, "k_weight", route.k_weight, {d}, args.qkv);
    sets.push_back(route.rows);
  }
  ops::check_row_sets(kOp, sets, args.qkv);
  ops::check_table(kOp, "cos", args.cos, at::kFloat, {rows, d / 2}, args.qkv);
  ops::check_table(kOp, "sin", args.sin, at::kFloat, {rows, d / 2}, args.qkv);
  ops::check_table(kOp, "slots", args.slots, at::kLong, {rows}, args.qkv);
  check_cache("keys", args.keys, args);
  check_cache("values", args.values, args);
}

// x [rows, n, head_dim], row stride free -> the same, contiguous, normed and rotated.
Tensor norm_rope_reference(const Tensor& x, const Tensor& weight, const QkNormRope& args,
                           const RowSet& set) {
  const bool every_step = args.rounding == RopeRounding::every_step;
  const at::ScalarType compute = every_step ? x.scalar_type() : at::kFloat;
  const Tensor wide = x.to(at::kFloat);
  const Tensor scale = wide.pow(2).mean(-1, /*keepdim=*/true).add_(args.eps).rsqrt_();
  const Tensor normed = wide.mul(scale).to(compute).mul_(weight);

  // Half-split rotation; every op rounds to `compute`.
  const std::int64_t half = args.head_dim / 2;
  const Tensor cos = ops::take_rows(args.cos, set).to(compute).unsqueeze(1);  // [rows, 1, half]
  const Tensor sin = ops::take_rows(args.sin, set).to(compute).unsqueeze(1);
  const Tensor low = normed.narrow(-1, 0, half), high = normed.narrow(-1, half, half);
  const Tensor turned = at::empty_like(normed, at::MemoryFormat::Contiguous);
  Tensor turned_low = turned.narrow(-1, 0, half), turned_high = turned.narrow(-1, half, half);
  at::mul_out(turned_low, low, cos).sub_(high.mul(sin));
  at::mul_out(turned_high, high, cos).add_(low.mul(sin));
  return turned.to(x.scalar_type());
}

// On the CPU, before anything is written.
void check_slots(const QkNormRope& args) {
  if (!args.slots.is_cpu()) return;
  const std::int64_t end = args.keys.size(0) * args.keys.size(1);
  for (const QkNormRoute& route : args.routes) {
    if (route.rows.count == 0) continue;
    const auto [least, most] = at::aminmax(ops::take_rows(args.slots, route.rows));
    TORCH_CHECK(least.item<std::int64_t>() >= 0 && most.item<std::int64_t>() < end, "[", kOp,
                "] slots are in ", least.item<std::int64_t>(), "..", most.item<std::int64_t>(),
                ", the cache has ", end);
  }
}

// cache[slot / capacity][slot % capacity] = row
void write_slots(const Tensor& cache, const Tensor& slots, const Tensor& rows) {
  const std::int64_t samples = cache.size(0), capacity = cache.size(1);
  if (samples == 1 || cache.stride(0) == capacity * cache.stride(1)) {
    cache.flatten(0, 1).index_copy_(0, slots, rows);
  } else {
    const Tensor sample = at::floor_divide(slots, capacity),
                 position = at::remainder(slots, capacity);
    Tensor view = cache;
    view.index_put_({sample, position}, rows);
  }
}

// q of the route's rows
Tensor route_reference(const QkNormRope& args, const QkNormRoute& route) {
  const std::int64_t d = args.head_dim, heads = args.heads, kv_heads = args.kv_heads;
  const Tensor qkv = ops::take_rows(args.qkv, route.rows);
  const Tensor slots = ops::take_rows(args.slots, route.rows);
  const auto part = [&](std::int64_t first, std::int64_t count) {
    return qkv.narrow(1, first * d, count * d).unflatten(1, {count, d});
  };
  write_slots(args.keys, slots,
              norm_rope_reference(part(heads, kv_heads), route.k_weight, args, route.rows));
  write_slots(args.values, slots, part(heads + kv_heads, kv_heads));
  return norm_rope_reference(part(0, heads), route.q_weight, args, route.rows);
}

Tensor empty_q(const QkNormRope& args) {
  return at::empty({args.qkv.size(0), args.heads, args.head_dim}, args.qkv.options());
}

Tensor reference(const QkNormRope& args) {
  check_slots(args);
  for (const QkNormRoute& route : args.routes) {
    if (ops::is_all_of(route.rows, args.qkv)) return route_reference(args, route);
  }
  const Tensor q = empty_q(args);
  for (const QkNormRoute& route : args.routes) {
    if (route.rows.count > 0) ops::put_rows(q, route.rows, route_reference(args, route));
  }
  return q;
}

// But for q, which is written.
kernels::QkNormRopeArgs kernel_args(const QkNormRope& from) {
  kernels::QkNormRopeArgs args;
  args.qkv = from.qkv.data_ptr();
  for (std::size_t i = 0; i < from.routes.size(); ++i) {
    const QkNormRoute& route = from.routes[i];
    args.sets[i] = {route.q_weight.data_ptr(), route.k_weight.data_ptr(),
                    ops::kernel_rows(route.rows)};
  }
  args.cos = from.cos.data_ptr<float>();
  args.sin = from.sin.data_ptr<float>();
  args.slots = from.slots.data_ptr<std::int64_t>();
  args.keys = from.keys.data_ptr();
  args.values = from.values.data_ptr();
  args.rows = from.qkv.size(0);
  args.heads = from.heads;
  args.kv_heads = from.kv_heads;
  args.head_dim = from.head_dim;
  args.samples = from.keys.size(0);
  args.capacity = from.keys.size(1);
  args.qkv_stride = from.qkv.stride(0);
  args.cos_stride = args.sin_stride = from.head_dim / 2;
  args.key_stride = from.keys.stride(0);
  args.value_stride = from.values.stride(0);
  args.eps = static_cast<float>(from.eps);
  args.round_every_step = from.rounding == RopeRounding::every_step;
  args.dtype = ops::kernel_dtype(from.qkv);
  return args;
}

// Of all rows by one set of weights, or nothing. Without what is written to.
std::optional<kernels::RopeAttentionArgs> fused_args(const RopeAttention& from) {
  QkNormRope rope = from.rope;
  std::erase_if(rope.routes, [](const QkNormRoute& route) { return route.rows.count == 0; });
  if (rope.routes.size() != 1 || rope.keys.size(0) != 1) return std::nullopt;
  kernels::RopeAttentionArgs args;
  args.rope = kernel_args(rope);
  args.key_count = from.key_count.const_data_ptr<std::int32_t>();
  args.scale = static_cast<float>(from.scale);
  args.causal = from.causal;
  return args;
}

void check_arguments(const RopeAttention& args) {
  check_arguments(args.rope);
  ops::check_table(kFused, "key_count", args.key_count, at::kInt, {args.rope.keys.size(0)},
                   args.rope.qkv);
  if (args.query_starts.defined()) {
    ops::check_table(kFused, "query_starts", args.query_starts, at::kInt,
                     {args.rope.keys.size(0) + 1}, args.rope.qkv);
  }
  TORCH_CHECK(args.scale > 0, "[", kFused, "] scale is ", args.scale, ", expected > 0");
}

bool takes_one_kernel([[maybe_unused]] const kernels::RopeAttentionArgs& args) {
#if DIPTYCH_HAVE_CUDA
  return kernels::rope_attention_unsupported(args) == nullptr;
#else
  return false;
#endif
}

}  // namespace

Tensor qk_norm_rope(const QkNormRope& args, KernelPolicy policy) {
  check_arguments(args);
  const LaunchLabel label(launch_names::kRope);
  if (!ops::takes_kernel(kOp, args.qkv, policy)) return reference(args);
  const Tensor q = empty_q(args);
  kernels::QkNormRopeArgs call = kernel_args(args);
  call.q = q.data_ptr();
  ops::launch(call, args.qkv.device());
  return q;
}

Tensor rope_attention(const RopeAttention& args, KernelPolicy policy) {
  check_arguments(args);
  const at::Device device = args.rope.qkv.device();
  if (ops::takes_kernel(kFused, args.rope.qkv, policy) && ops::has_rope_attention(device)) {
    if (auto call = fused_args(args); call && takes_one_kernel(*call)) {
      const Tensor out = empty_q(args.rope);
      call->out = out.data_ptr();
      ops::launch(*call, device);
      return out;
    }
  }
  return decode_attention(
      {qk_norm_rope(args.rope, policy), args.rope.keys, args.rope.values, args.key_count,
       args.query_starts, args.scale, args.causal, args.most_rows},
      policy);
}

}  // namespace diptych
