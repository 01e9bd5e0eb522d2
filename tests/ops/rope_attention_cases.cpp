#include "tests/ops/rope_attention_cases.h"

#include <cmath>
#include <limits>
#include <stdexcept>

#include <doctest/doctest.h>
#include <fmt/format.h>

#include "kernels/rope_attention/rope_attention.h"
#include "lib/ops/kernel_call.h"
#include "tests/kernels/kernel_dtype.h"

namespace diptych::testing {
namespace {

constexpr double kEps = 1e-6;

struct Heads {
  std::int64_t heads, kv_heads, head_dim;
};
struct Text {
  std::int64_t rows, keys;  // new rows, and all keys with them
};

Tensor random(at::Generator& generator, at::IntArrayRef sizes, at::ScalarType dtype) {
  return at::randn(sizes, generator, at::kFloat).to(dtype);
}

// The newest rows of texts, each in a cache with NaN behind its keys. Logits grow along the keys,
// so that a running softmax is rescaled on its way.
RopeAttention make_call(at::Generator& generator, const Heads& h, std::span<const Text> texts,
                        at::ScalarType dtype, bool causal) {
  const auto samples = static_cast<std::int64_t>(texts.size());
  std::int64_t capacity = 0;
  // Full where the last keys have an even number.
  for (const Text& text : texts) capacity = std::max(capacity, text.keys + text.keys % 2 * 3);
  std::vector<std::int32_t> counts, starts = {0};
  std::vector<std::int64_t> slots;
  for (std::int64_t s = 0; s < samples; ++s) {
    const Text& text = texts[static_cast<std::size_t>(s)];
    counts.push_back(static_cast<std::int32_t>(text.keys));
    starts.push_back(starts.back() + static_cast<std::int32_t>(text.rows));
    for (std::int64_t row = 0; row < text.rows; ++row)
      slots.push_back(s * capacity + text.keys - text.rows + row);
  }
  const std::int64_t rows = starts.back();
  const auto cache = [&] {
    const Tensor all = random(generator, {samples, capacity, h.kv_heads, h.head_dim}, dtype);
    all.mul_(at::linspace(0.5, 2, capacity).to(dtype).view({capacity, 1, 1}));
    for (std::int64_t s = 0; s < samples; ++s) {
      const Text& text = texts[static_cast<std::size_t>(s)];
      const std::int64_t old = text.keys - text.rows;
      all[s].narrow(0, old, capacity - old).fill_(std::numeric_limits<double>::quiet_NaN());
    }
    return all;
  };
  RopeAttention call;
  QkNormRope& rope = call.rope;
  rope.qkv = random(generator, {rows, (h.heads + 2 * h.kv_heads) * h.head_dim}, dtype);
  rope.routes = {{random(generator, {h.head_dim}, dtype), random(generator, {h.head_dim}, dtype),
                  RowSet::range(0, 0)},
                 {random(generator, {h.head_dim}, dtype) + 1,
                  random(generator, {h.head_dim}, dtype) + 1, RowSet::range(0, rows)}};
  const Tensor angles = at::rand({rows, h.head_dim / 2}, generator, at::kFloat) * 6;
  std::tie(rope.cos, rope.sin) = rope_table(angles, dtype);
  rope.slots = at::tensor(slots, at::kLong);
  rope.keys = cache();
  rope.values = cache();
  rope.heads = h.heads;
  rope.kv_heads = h.kv_heads;
  rope.head_dim = h.head_dim;
  rope.eps = kEps;
  call.key_count = at::tensor(counts, at::kInt);
  if (samples > 1) call.query_starts = at::tensor(starts, at::kInt);
  call.scale = 1 / std::sqrt(static_cast<double>(h.head_dim));
  call.causal = causal;
  return call;
}

RopeAttention moved(const RopeAttention& call, at::Device device) {
  const auto there = [&](const Tensor& t) {
    return t.defined() ? t.to(device, /*non_blocking=*/false, /*copy=*/true) : t;
  };
  RopeAttention copy = call;
  for (Tensor QkNormRope::*tensor : {&QkNormRope::qkv, &QkNormRope::cos, &QkNormRope::sin,
                                     &QkNormRope::slots, &QkNormRope::keys, &QkNormRope::values})
    copy.rope.*tensor = there(call.rope.*tensor);
  for (QkNormRoute& route : copy.rope.routes) {
    route.q_weight = there(route.q_weight);
    route.k_weight = there(route.k_weight);
  }
  copy.key_count = there(call.key_count);
  copy.query_starts = there(call.query_starts);
  return copy;
}

kernels::RopeAttentionArgs reference_args(const RopeAttention& call, const Tensor& out) {
  const QkNormRope& rope = call.rope;
  const QkNormRoute& route = rope.routes[1];
  kernels::RopeAttentionArgs args;
  kernels::QkNormRopeArgs& to = args.rope;
  to.qkv = rope.qkv.data_ptr();
  to.cos = rope.cos.data_ptr<float>();
  to.sin = rope.sin.data_ptr<float>();
  to.slots = rope.slots.data_ptr<std::int64_t>();
  to.keys = rope.keys.data_ptr();
  to.values = rope.values.data_ptr();
  to.sets[0] = {route.q_weight.data_ptr(), route.k_weight.data_ptr(), {nullptr, 0, out.size(0)}};
  to.rows = out.size(0);
  to.heads = rope.heads;
  to.kv_heads = rope.kv_heads;
  to.head_dim = rope.head_dim;
  to.samples = 1;
  to.capacity = rope.keys.size(1);
  to.qkv_stride = rope.qkv.stride(0);
  to.cos_stride = to.sin_stride = rope.head_dim / 2;
  to.key_stride = rope.keys.stride(0);
  to.value_stride = rope.values.stride(0);
  to.eps = static_cast<float>(rope.eps);
  to.round_every_step = rope.rounding == RopeRounding::every_step;
  to.dtype = kernel_dtype(rope.qkv.scalar_type());
  args.key_count = call.key_count.data_ptr<std::int32_t>();
  args.out = out.data_ptr();
  args.scale = static_cast<float>(call.scale);
  args.causal = call.causal;
  return args;
}

Tensor empty_out(const RopeAttention& call) {
  return at::empty({call.rope.qkv.size(0), call.rope.heads, call.rope.head_dim},
                   call.rope.qkv.options());
}

// As far as rounding allows: weights and q are rounded to the dtype, and the order of sums differs.
void check_close_to(const Tensor& got, const Tensor& wanted, const std::string& what) {
  CAPTURE(what);
  REQUIRE((got.sizes() == wanted.sizes()));
  REQUIRE((got.scalar_type() == wanted.scalar_type()));
  const double tolerance = wanted.scalar_type() == at::kFloat      ? 5e-6
                           : wanted.scalar_type() == at::kBFloat16 ? 0.004
                                                                   : 0.0006;
  const Tensor a = got.cpu().to(at::kDouble), e = wanted.to(at::kDouble);
  CHECK((a - e).norm().item<double>() <= tolerance * e.norm().item<double>());
  const double step = 4 * tolerance;
  CHECK((a - e).abs().max().item<double>() <= step * e.abs().max().item<double>());
}

// To the bit, NaN included.
void check_cache(const Tensor& got, const Tensor& wanted) {
  CHECK(at::equal(at::nan_to_num(got, 77), at::nan_to_num(wanted, 77)));
}

// On a device that has the kernel, calls that it takes give its bits.
void check_one_kernel([[maybe_unused]] const RopeAttention& call,
                      [[maybe_unused]] const Tensor& got) {
#if DIPTYCH_HAVE_CUDA
  const RopeAttention again = moved(call, got.device());
  const Tensor out = empty_out(again);
  const kernels::RopeAttentionArgs args = reference_args(again, out);
  if (!ops::has_rope_attention(got.device()) ||
      kernels::rope_attention_unsupported(args) != nullptr)
    return;
  ops::launch(args, got.device());
  CHECK(at::equal(out, got));
#endif
}

void check_text(at::Generator& generator, const Heads& h, const Text& text, at::ScalarType dtype,
                RopeRounding rounding, at::Device device, KernelPolicy policy) {
  for (const bool causal : {false, true}) {
    RopeAttention call = make_call(generator, h, {{text}}, dtype, causal);
    call.rope.rounding = rounding;
    const RopeAttention there = moved(call, device), written = moved(call, device);
    const Tensor got = rope_attention(there, policy);
    qk_norm_rope(written.rope, policy);
    const Tensor wanted = empty_out(call);
    kernels::rope_attention_ref(reference_args(call, wanted));
    check_close_to(got, wanted,
                   fmt::format("{} {}/{} x {}, {} rows, {} keys, causal {}", c10::toString(dtype),
                               h.heads, h.kv_heads, h.head_dim, text.rows, text.keys, causal));
    check_cache(there.rope.keys, written.rope.keys);
    check_cache(there.rope.values, written.rope.values);
    if (policy == KernelPolicy::strict) check_one_kernel(call, got);
  }
}

}  // namespace

void check_rope_attention(at::Device device, KernelPolicy policy) {
  at::Generator generator = at::detail::createCPUGenerator(23);
  // More than 2048 keys: new ones lie behind the first two stages of a block.
  const Text texts[] = {{1, 1},    {1, 4},    {1, 5},   {2, 2},    {1, 64},
                        {2, 65},   {1, 300},  {4, 66},  {3, 300},  {1, 2049},
                        {4, 2114}, {2, 4163}, {16, 80}, {1, 1025}, {2, 1023}};
  for (const at::ScalarType dtype : {at::kBFloat16, at::kHalf, at::kFloat}) {
    for (const Heads& h : {Heads{32, 8, 128}, Heads{28, 4, 128}, Heads{16, 2, 128},
                           Heads{16, 1, 128}, Heads{3, 3, 128}, Heads{4, 2, 32}}) {
      const bool large = h.heads * h.head_dim > 2048;
      for (const Text& text : texts) {
        if (device.is_cpu() && text.keys > 1000 && (large || dtype == at::kHalf)) continue;
        check_text(generator, h, text, dtype, RopeRounding::every_step, device, policy);
      }
      check_text(generator, h, {2, 90}, dtype, RopeRounding::at_the_end, device, policy);
    }
  }
}

void check_rope_attention_of_steps(at::Device device, KernelPolicy policy) {
  at::Generator generator = at::detail::createCPUGenerator(25);
  const std::int64_t steps = 5, first = 61;
  const RopeAttention last =
      make_call(generator, {28, 4, 128}, {{{steps, first + steps - 1}}}, at::kBFloat16, true);
  const auto step_of = [](const RopeAttention& all, std::int64_t step) {
    RopeAttention one = all;
    for (Tensor QkNormRope::*rows :
         {&QkNormRope::qkv, &QkNormRope::cos, &QkNormRope::sin, &QkNormRope::slots})
      one.rope.*rows = (all.rope.*rows).narrow(0, step, 1);
    one.rope.routes[1].rows = RowSet::range(0, 1);
    return one;
  };
  const RopeAttention there = moved(last, device);
  there.key_count.fill_(first - 1);
  std::vector<Tensor> got;
  for (std::int64_t step = 0; step < steps; ++step) {
    there.key_count.add_(1);
    got.push_back(rope_attention(step_of(there, step), policy));
  }
  for (std::int64_t step = 0; step < steps; ++step) {
    last.key_count.fill_(first + step);
    const RopeAttention one = step_of(last, step);
    const Tensor wanted = empty_out(one);
    kernels::rope_attention_ref(reference_args(one, wanted));
    check_close_to(got[static_cast<std::size_t>(step)], wanted, fmt::format("step {}", step));
  }
}

void check_rope_attention_of_samples(at::Device device, KernelPolicy policy) {
  at::Generator generator = at::detail::createCPUGenerator(24);
  const std::vector<Text> texts = {{1, 30}, {2, 9}, {1, 70}};
  const RopeAttention call = make_call(generator, {8, 2, 128}, texts, at::kBFloat16, true);
  const RopeAttention there = moved(call, device);
  const Tensor got = rope_attention(there, policy);
  std::int64_t row = 0;
  for (std::size_t s = 0; s < texts.size(); ++s) {
    const auto sample = static_cast<std::int64_t>(s);
    const auto of_text = [&](const Tensor& t) { return t.narrow(0, row, texts[s].rows); };
    RopeAttention alone = call;
    alone.rope.qkv = of_text(call.rope.qkv);
    alone.rope.cos = of_text(call.rope.cos);
    alone.rope.sin = of_text(call.rope.sin);
    alone.rope.slots = of_text(call.rope.slots) - sample * call.rope.keys.size(1);
    alone.rope.keys = call.rope.keys.narrow(0, sample, 1);
    alone.rope.values = call.rope.values.narrow(0, sample, 1);
    alone.key_count = call.key_count.narrow(0, sample, 1);
    const Tensor wanted = empty_out(alone);
    kernels::rope_attention_ref(reference_args(alone, wanted));
    check_close_to(of_text(got), wanted, fmt::format("sample {}", s));
    row += texts[s].rows;
  }

  RopeAttention one = make_call(generator, {8, 2, 128}, {{{2, 9}}}, at::kFloat, true);
  const Tensor out = empty_out(one);
  kernels::RopeAttentionArgs args = reference_args(one, out);
  one.rope.slots.add_(1);
  CHECK_THROWS_AS(kernels::rope_attention_ref(args), std::out_of_range);
  one.rope.slots.sub_(1);
  one.key_count.fill_(1);
  CHECK_THROWS_AS(kernels::rope_attention_ref(args), std::out_of_range);
  RopeAttention refused = one;
  refused.scale = 0;
  CHECK_THROWS_AS(rope_attention(refused, policy), c10::Error);
  refused = one;
  refused.key_count = at::tensor({9, 9}, at::kInt);
  CHECK_THROWS_AS(rope_attention(refused, policy), c10::Error);
}

}  // namespace diptych::testing
