#include "tests/ops/cases.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include <fmt/ranges.h>

#include "kernels/decode_attention/decode_attention.h"
#include "kernels/linear_row/linear_row.h"
#include "kernels/qk_norm_rope/qk_norm_rope.h"
#include "kernels/rms_norm/rms_norm.h"
#include "kernels/silu_mul/silu_mul.h"
#include "tests/kernels/field.h"
#include "tests/kernels/rope_cache.h"
#include "tests/ops/row_set.h"

namespace diptych::testing {

std::pair<Tensor, Tensor> rope_table_at(const Tensor& positions, std::int64_t head_dim,
                                        at::ScalarType dtype) {
  const Tensor frequencies = rope_frequencies(head_dim, 1e6).to(positions.device());
  return rope_table(positions.to(at::kFloat).unsqueeze(1) * frequencies, dtype);
}

namespace {

constexpr double kEps = 1e-6;
constexpr at::ScalarType kDtypes[] = {at::kFloat, at::kBFloat16, at::kHalf};
constexpr std::int64_t kRows[] = {0, 1, 3, 17, 258};
constexpr std::int64_t kManyRows[] = {1026, 8208};  // of pictures of 512x512 and 1024x1024

// One row count has large values; half ends at 65504 and gets smaller ones.
double scale_of(std::int64_t rows, at::ScalarType dtype) {
  if (rows != 17) return 1;
  return dtype == at::kHalf ? 1e3 : 1e4;
}

std::string describe(at::ScalarType dtype, std::int64_t rows, std::int64_t width, Layout layout) {
  return fmt::format("{} [{}, {}] layout {}", c10::toString(dtype), rows, width,
                     static_cast<int>(layout));
}

// Calls body(dtype, rows, width, layout). Many rows have the released width on a GPU.
template <typename Body>
void for_rows(at::Device device, const Body& body) {
  for (const at::ScalarType dtype : kDtypes) {
    for (const std::int64_t rows : kRows) {
      // 40000 is more than a block of the kernel holds in registers
      for (const std::int64_t width : {64, 130, 3584, 1, 40000}) {
        if (width == 40000 && rows > 1) continue;
        for (const Layout layout : kLayouts) {
          if (rows * width > 50000 && layout != Layout::packed) continue;
          body(dtype, rows, width, layout);
        }
      }
    }
  }
  for (const at::ScalarType dtype : kDtypes) {
    for (const std::int64_t rows : kManyRows)
      body(dtype, rows, device.is_cpu() ? 130 : 3584, Layout::packed);
  }
}

struct Norm {
  Tensor sum, y;
};

Norm norm_reference(const Tensor& x, const Tensor& delta, const Tensor& weight) {
  const Tensor from = x.cpu(), add = delta.defined() ? delta.cpu() : Tensor(), w = weight.cpu();
  Norm out{Tensor(), at::empty(from.sizes(), from.options())};
  kernels::RmsNormArgs args;
  args.x = from.data_ptr();
  args.sets[0] = {w.data_ptr(), {nullptr, 0, from.size(0)}};
  args.y = out.y.data_ptr();
  args.rows = from.size(0);
  args.width = from.size(1);
  args.x_stride = from.stride(0);
  args.y_stride = args.sum_stride = from.size(1);
  args.eps = static_cast<float>(kEps);
  args.dtype = kernel_dtype(from.scalar_type());
  if (add.defined()) {
    out.sum = at::empty_like(out.y);
    args.delta = add.data_ptr();
    args.delta_stride = add.stride(0);
    args.sum = out.sum.data_ptr();
  }
  kernels::rms_norm_ref(args);
  return out;
}

}  // namespace

void check_rms_norm(at::Device device, KernelPolicy policy) {
  at::Generator generator = at::detail::createCPUGenerator(11);
  for_rows(device, [&](at::ScalarType dtype, std::int64_t rows, std::int64_t width, Layout layout) {
    const auto options = at::TensorOptions(dtype).device(device);
    const Tensor x = random_rows(generator, rows, width, scale_of(rows, dtype), layout, options);
    const Tensor weight = random_rows(generator, 1, width, 1, Layout::packed, options)[0];
    const Tensor y = rms_norm(x, weight, kEps, policy);
    check_close(y, norm_reference(x, {}, weight).y, 2, describe(dtype, rows, width, layout));
  });
}

void check_add_rms_norm(at::Device device, KernelPolicy policy) {
  at::Generator generator = at::detail::createCPUGenerator(12);
  for_rows(device, [&](at::ScalarType dtype, std::int64_t rows, std::int64_t width, Layout layout) {
    const auto options = at::TensorOptions(dtype).device(device);
    const double scale = scale_of(rows, dtype);
    Tensor x = random_rows(generator, rows, width, scale, Layout::packed, options);
    const Tensor delta = random_rows(generator, rows, width, scale, layout, options);
    const Tensor weight = random_rows(generator, 1, width, 1, Layout::packed, options)[0];
    const Norm expected = norm_reference(x, delta, weight);
    const NormRoute all{weight, RowSet::range(0, rows)};
    const Tensor y = add_rms_norm_(x, delta, std::span(&all, 1), kEps, policy);
    const std::string what = describe(dtype, rows, width, layout);
    check_close(x, expected.sum, 0, what);
    check_close(y, expected.y, 2, what);
  });
}

void check_silu_mul(at::Device device, KernelPolicy policy) {
  at::Generator generator = at::detail::createCPUGenerator(13);
  for_rows(device, [&](at::ScalarType dtype, std::int64_t rows, std::int64_t inner, Layout layout) {
    const auto options = at::TensorOptions(dtype).device(device);
    const double scale = rows == 17 ? (dtype == at::kHalf ? 50 : 1e4) : 1;
    const Tensor gate_up = random_rows(generator, rows, 2 * inner, scale, layout, options);
    const Tensor from = gate_up.cpu(), expected = at::empty({rows, inner}, from.options());
    kernels::SiluMulArgs args;
    args.gate_up = from.data_ptr();
    args.y = expected.data_ptr();
    args.rows = rows;
    args.inner = inner;
    args.gate_up_stride = from.stride(0);
    args.y_stride = inner;
    args.dtype = kernel_dtype(dtype);
    kernels::silu_mul_ref(args);
    check_close(silu_mul(gate_up, policy), expected, 2, describe(dtype, rows, inner, layout));
  });
}

namespace {

struct Heads {
  std::int64_t heads, kv_heads, head_dim;
};
// The released model, the tiny one, one that allows no vectors, and the widest head.
constexpr Heads kHeads[] = {{28, 4, 128}, {4, 2, 16}, {3, 1, 10}, {2, 1, 256}};
// A cache full of canaries. Interleaved: keys and values alternate sample by sample, so that
// samples of either do not follow each other in memory.
void make_cache(QkNormRope& args, bool interleaved, const at::TensorOptions& options) {
  const Tensor both =
      at::full({kCacheSamples, 2, cache_capacity(args.qkv.size(0)), args.kv_heads, args.head_dim},
               kCanary, options);
  args.keys = both.select(1, 0);
  args.values = both.select(1, 1);
  if (interleaved) return;
  args.keys = args.keys.contiguous();
  args.values = args.values.contiguous();
}

QkNormRope make_case(at::Generator& generator, const Heads& h, std::int64_t rows, Layout layout,
                     RopeRounding rounding, const at::TensorOptions& options) {
  const at::ScalarType dtype = c10::typeMetaToScalarType(options.dtype());
  const at::Device device = options.device();
  QkNormRope args;
  args.heads = h.heads;
  args.kv_heads = h.kv_heads;
  args.head_dim = h.head_dim;
  args.eps = kEps;
  args.rounding = rounding;
  const std::int64_t width = (h.heads + 2 * h.kv_heads) * h.head_dim;
  args.qkv = random_rows(generator, rows, width, scale_of(rows, dtype), layout, options);
  const auto weight = [&] {
    return random_rows(generator, 1, h.head_dim, 1, Layout::packed, options)[0];
  };
  args.routes = {{weight(), weight(), RowSet::range(0, rows)}};
  const Tensor positions = at::randint(0, 5000, {rows}, generator, at::kLong).to(device);
  std::tie(args.cos, args.sin) = rope_table_at(positions, h.head_dim, dtype);
  args.slots = at::randperm(kCacheSamples * cache_capacity(rows), generator, at::kLong)
                   .narrow(0, 0, rows)
                   .to(device);
  make_cache(args, layout == Layout::spaced, options);
  return args;
}

// The reference on copies of the arguments: what it wrote, and q.
struct Rotated {
  Tensor q, keys, values;
};

Rotated rope_reference(const QkNormRope& from) {
  const auto copy = [](const Tensor& t) { return t.cpu().clone(at::MemoryFormat::Contiguous); };
  const Tensor qkv = copy(from.qkv);
  const Tensor cos = copy(from.cos), sin = copy(from.sin), slots = copy(from.slots);
  const Rotated out{at::full({qkv.size(0), from.heads, from.head_dim}, kCanary, qkv.options()),
                    copy(from.keys), copy(from.values)};
  kernels::QkNormRopeArgs args;
  args.qkv = qkv.data_ptr();
  std::vector<Tensor> kept;  // alive while the pointers are in use
  const auto pointer = [&](const Tensor& t) { return kept.emplace_back(copy(t)).data_ptr(); };
  for (std::size_t i = 0; i < from.routes.size(); ++i) {
    const auto& [q_weight, k_weight, rows] = from.routes[i];
    args.sets[i] = {pointer(q_weight), pointer(k_weight), {nullptr, rows.first, rows.count}};
    if (!rows.index.defined()) continue;
    args.sets[i].rows.index = static_cast<const std::int64_t*>(pointer(rows.index));
  }
  args.cos = cos.data_ptr<float>();
  args.sin = sin.data_ptr<float>();
  args.slots = slots.data_ptr<std::int64_t>();
  args.q = out.q.data_ptr();
  args.keys = out.keys.data_ptr();
  args.values = out.values.data_ptr();
  args.rows = qkv.size(0);
  args.heads = from.heads;
  args.kv_heads = from.kv_heads;
  args.head_dim = from.head_dim;
  args.samples = from.keys.size(0);
  args.capacity = from.keys.size(1);
  args.qkv_stride = qkv.size(1);
  args.cos_stride = args.sin_stride = from.head_dim / 2;
  args.key_stride = args.value_stride = args.capacity * from.kv_heads * from.head_dim;
  args.eps = static_cast<float>(from.eps);
  args.round_every_step = from.rounding == RopeRounding::every_step;
  args.dtype = kernel_dtype(qkv.scalar_type());
  kernels::qk_norm_rope_ref(args);
  return out;
}

}  // namespace

void check_qk_norm_rope(at::Device device, KernelPolicy policy) {
  at::Generator generator = at::detail::createCPUGenerator(14);
  const auto check = [&](at::ScalarType dtype, const Heads& heads, std::int64_t rows,
                         Layout layout) {
    for (const auto rounding : {RopeRounding::every_step, RopeRounding::at_the_end}) {
      const auto options = at::TensorOptions(dtype).device(device);
      const QkNormRope args = make_case(generator, heads, rows, layout, rounding, options);
      const Rotated expected = rope_reference(args);
      const Tensor q = qk_norm_rope(args, policy);
      const std::string what = describe(dtype, rows, heads.head_dim, layout);
      check_rotated(q, expected.q, what);
      check_rotated(args.keys, expected.keys, what);  // canaries included
      CHECK(at::equal(args.values.cpu(), expected.values));
    }
  };
  for (const at::ScalarType dtype : kDtypes) {
    for (const Heads& heads : kHeads) {
      for (const std::int64_t rows : kRows) {
        for (const Layout layout : kLayouts) {
          if (rows == 258 && layout != Layout::packed) continue;
          check(dtype, heads, rows, layout);
        }
      }
    }
    for (const std::int64_t rows : kManyRows)
      check(dtype, kHeads[device.is_cpu() ? 1 : 0], rows, Layout::packed);
  }
}

namespace {

void check_norm_routing(const Routing& routing, std::int64_t width, Layout layout, bool add,
                        at::Generator& generator, const at::TensorOptions& options,
                        KernelPolicy policy) {
  const std::string what = fmt::format("{} [{}, {}] add {}: {}", c10::toString(options.dtype()),
                                       routing.rows, width, add, routing.name);
  CAPTURE(what);
  const auto draw = [&](std::int64_t rows, Layout how) {
    return random_rows(generator, rows, width, 1, how, options);
  };
  Tensor x = draw(routing.rows, add ? Layout::packed : layout);
  const Tensor before = x.clone(), delta = add ? draw(routing.rows, layout) : Tensor();
  std::vector<NormRoute> routes;
  for (const RoutedSet& set : routing.sets) {
    routes.push_back({draw(1, Layout::packed)[0], row_set(set, options.device())});
  }
  const Tensor y =
      add ? add_rms_norm_(x, delta, routes, kEps, policy) : rms_norm(x, routes, kEps, policy);
  Tensor expected_x = before.cpu().clone();
  for (std::size_t i = 0; i < routes.size(); ++i) {
    const Tensor& rows = routing.sets[i].rows;
    if (rows.numel() == 0) continue;
    const auto of = [&](const Tensor& t) { return t.cpu().index_select(0, rows); };
    const Norm expected = norm_reference(of(before), add ? of(delta) : Tensor(), routes[i].weight);
    check_close(of(y), expected.y, 2, what);
    if (add) expected_x.index_copy_(0, rows, expected.sum);
  }
  CHECK(at::equal(x.cpu(), expected_x));
}

void check_rope_routing(const Routing& routing, const Heads& heads, Layout layout,
                        RopeRounding rounding, at::Generator& generator,
                        const at::TensorOptions& options, KernelPolicy policy) {
  QkNormRope args = make_case(generator, heads, routing.rows, layout, rounding, options);
  const std::string what = fmt::format("{} [{}, {}]: {}", c10::toString(options.dtype()),
                                       routing.rows, heads.head_dim, routing.name);
  CAPTURE(what);
  const QkNormRoute& first = args.routes[0];
  args.routes = {{first.q_weight, first.k_weight, row_set(routing.sets[0], options.device())},
                 {first.k_weight, first.q_weight, row_set(routing.sets[1], options.device())}};
  const Rotated expected = rope_reference(args);
  const Tensor q = qk_norm_rope(args, policy).cpu(), routed = routing.routed();
  check_rotated(q.index_select(0, routed), expected.q.index_select(0, routed), what);
  check_rotated(args.keys, expected.keys, what);
  CHECK(at::equal(args.values.cpu(), expected.values));
}

}  // namespace

void check_routes(at::Device device, KernelPolicy policy) {
  at::Generator generator = at::detail::createCPUGenerator(17);
  for (const at::ScalarType dtype : kDtypes) {
    const auto options = at::TensorOptions(dtype).device(device);
    for (const std::int64_t rows : {1, 3, 17, 258}) {
      for (const Routing& routing : routings(rows)) {
        for (const Layout layout : kLayouts) {
          for (const bool add : {false, true}) {
            check_norm_routing(routing, 64, layout, add, generator, options, policy);
          }
          for (const auto rounding : {RopeRounding::every_step, RopeRounding::at_the_end}) {
            check_rope_routing(routing, {4, 2, 16}, layout, rounding, generator, options, policy);
          }
        }
      }
    }
    for (const std::int64_t rows : kManyRows) {
      for (const Routing& routing : routings(rows)) {
        check_norm_routing(routing, 130, Layout::spaced, true, generator, options, policy);
        check_rope_routing(routing, {4, 2, 16}, Layout::packed, RopeRounding::at_the_end, generator,
                           options, policy);
      }
    }
  }
}

void check_no_trespassing(at::Device device, KernelPolicy policy) {
  at::Generator generator = at::detail::createCPUGenerator(15);
  for (const at::ScalarType dtype : kDtypes) {
    for (const Heads& heads : kHeads) {
      for (const Layout layout : kLayouts) {
        const auto options = at::TensorOptions(dtype).device(device);
        QkNormRope args =
            make_case(generator, heads, 258, layout, RopeRounding::at_the_end, options);
        // Cut the cache out of a larger one: a sample before and behind, and rows behind each.
        const std::int64_t capacity = cache_capacity(258);
        const Tensor around = at::full(
            {kCacheSamples + 2, capacity + 5, heads.kv_heads, heads.head_dim}, kCanary, options);
        const Tensor inside = around.narrow(0, 1, kCacheSamples).narrow(1, 0, capacity);
        args.keys = inside;
        const Tensor values_around = around.clone();
        args.values = values_around.narrow(0, 1, kCacheSamples).narrow(1, 0, capacity);
        qk_norm_rope(args, policy);
        for (const Tensor& cache : {around, values_around}) {
          // Exactly the rows named by the slots differ from the canary.
          const Tensor changed = (cache != kCanary).flatten(2).all(-1).cpu();
          const Tensor touched = (cache != kCanary).flatten(2).any(-1).cpu();
          Tensor expected = at::zeros({kCacheSamples + 2, capacity + 5}, at::kBool);
          const Tensor slots = args.slots.cpu();
          expected.index_put_({at::floor_divide(slots, capacity) + 1, slots.remainder(capacity)},
                              at::ones({258}, at::kBool));
          CHECK(at::equal(changed, expected));
          CHECK(at::equal(touched, expected));
        }
      }
    }
  }
}

namespace {

// Sums in float32, whose order (and exp) differ: 2e-6 of the largest value, of more than 1024
// `terms` as much more as the root of their number. Rounded: one step of the largest.
void check_sums(const Tensor& actual, const Tensor& expected, const std::string& what,
                std::int64_t terms = 0) {
  CAPTURE(what);
  REQUIRE((actual.sizes() == expected.sizes()));
  REQUIRE((actual.scalar_type() == expected.scalar_type()));
  const at::ScalarType dtype = expected.scalar_type();
  const double longer = std::sqrt(std::max(1.0, static_cast<double>(terms) / 1024));
  const double step = dtype == at::kFloat      ? 2e-6 * longer
                      : dtype == at::kBFloat16 ? 0x1p-7
                                               : 0x1p-10;
  const Tensor a = actual.cpu().to(at::kFloat), e = expected.cpu().to(at::kFloat);
  const double most = e.abs().max().item<double>();
  CHECK((a - e).abs().max().item<double>() <= most * step);
  CHECK(most > 0.05);
}

}  // namespace

void check_linear_row(at::Device device, KernelPolicy policy) {
  at::Generator generator = at::detail::createCPUGenerator(16);
  for (const at::ScalarType dtype : kDtypes) {
    // the released model's widths, one that no vector divides, small ones, and of 16 bits as much
    // as two warps share, a vector more, and a vector more than they have on their way at once
    for (const auto& [inputs, outputs] : {std::pair{3584, 4608},
                                          {18944, 300},
                                          {3585, 37},
                                          {64, 9},
                                          {1, 5},
                                          {160, 64},
                                          {6144, 40},
                                          {6152, 40},
                                          {2056, 33}}) {
      for (const auto& [rows, biased] :
           {std::pair{1, false}, {1, true}, {2, true}, {9, false}, {16, true}}) {
        const bool in_vectors = dtype != at::kFloat && inputs % 8 == 0;
        if (rows > 1 && (outputs > 100 || !in_vectors)) continue;
        const auto make = [&](at::IntArrayRef shape, double scale) {
          return (at::randn(shape, generator, at::kFloat) * scale).to(dtype);
        };
        const Tensor x = make({rows, inputs}, 1);
        const Tensor weight = make({outputs, inputs}, 1 / std::sqrt(inputs));
        const Tensor bias = biased ? make({outputs}, 1) : Tensor();
        const Tensor expected = at::empty({rows, outputs}, x.options());
        kernels::LinearRowArgs args;
        args.rows = rows;
        args.x = x.data_ptr();
        args.weight = weight.data_ptr();
        args.bias = biased ? bias.data_ptr() : nullptr;
        args.y = expected.data_ptr();
        args.inputs = inputs;
        args.outputs = outputs;
        args.dtype = kernel_dtype(dtype);
        kernels::linear_row_ref(args);
        const auto there = [&](const Tensor& t) { return t.defined() ? t.to(device) : t; };
        check_sums(linear(there(x), there(weight), there(bias), policy), expected,
                   fmt::format("{} {} x {} -> {}{}", c10::toString(dtype), rows, inputs, outputs,
                               biased ? " with bias" : ""));
      }
    }
  }
}

namespace {

// Rows of several samples, each over the first of its keys.
struct FewRows {
  std::vector<std::int32_t> rows, keys;  // of each sample
  bool sliced;                           // of larger buffers
  std::int64_t room = 700;               // rows of a cache
};

std::string describe(const FewRows& few) {
  return fmt::format("rows {}, keys {}{}", fmt::join(few.rows, " "), fmt::join(few.keys, " "),
                     few.sliced ? ", sliced" : "");
}

// Behind the keys that count lies NaN. The logits grow along the keys, so that a running softmax is
// rescaled on its way.
DecodeAttention few_rows_call(const FewRows& few, const Heads& h, at::ScalarType dtype,
                              at::Generator& generator) {
  const auto make = [&](at::IntArrayRef shape) {
    return at::randn(shape, generator, at::kFloat).to(dtype);
  };
  const auto samples = static_cast<std::int64_t>(few.rows.size());
  std::vector<std::int32_t> starts = {0};
  for (const std::int32_t rows : few.rows) starts.push_back(starts.back() + rows);
  const std::int64_t more = few.sliced ? 1 : 0;
  const auto keys = [&] {
    return make({samples, few.room + 5 * more, h.kv_heads, h.head_dim})
        .narrow(1, 3 * more, few.room);
  };
  DecodeAttention call;
  call.q = make({starts.back(), h.heads + 2 * more, h.head_dim}).narrow(1, more, h.heads);
  call.keys = keys();
  call.keys.mul_(at::linspace(0.5, 2, few.room).to(dtype).view({few.room, 1, 1}));
  call.values = keys();
  for (std::int64_t i = 0; i < samples; ++i) {
    const std::int64_t count = few.keys[static_cast<std::size_t>(i)];
    for (const Tensor& rows : {call.keys, call.values}) {
      rows[i].narrow(0, count, few.room - count).fill_(std::numeric_limits<double>::quiet_NaN());
    }
  }
  call.key_count = at::tensor(few.keys, at::kInt);
  if (samples > 1) call.query_starts = at::tensor(starts, at::kInt);
  call.scale = 1 / std::sqrt(static_cast<double>(h.head_dim));
  return call;
}

Tensor few_rows_reference(const DecodeAttention& call) {
  Tensor expected = at::empty(call.q.sizes(), call.q.options());
  kernels::DecodeAttentionArgs args;
  args.q = call.q.data_ptr();
  args.keys = call.keys.data_ptr();
  args.values = call.values.data_ptr();
  args.key_count = call.key_count.data_ptr<std::int32_t>();
  if (call.query_starts.defined()) args.query_starts = call.query_starts.data_ptr<std::int32_t>();
  args.out = expected.data_ptr();
  args.rows = call.q.size(0);
  args.samples = call.keys.size(0);
  args.heads = call.q.size(1);
  args.kv_heads = call.keys.size(2);
  args.head_dim = call.q.size(2);
  args.capacity = call.keys.size(1);
  args.q_stride = call.q.stride(0);
  args.key_stride = call.keys.stride(1);
  args.sample_stride = call.keys.stride(0);
  args.scale = static_cast<float>(call.scale);
  args.causal = call.causal;
  args.dtype = kernel_dtype(call.q.scalar_type());
  kernels::decode_attention_ref(args);
  return expected;
}

// A copy on the device that lies as the tensor does.
Tensor moved(const Tensor& t, at::Device device) {
  if (!t.defined()) return t;
  const std::int64_t elements = (t.storage().nbytes() / t.element_size());
  return t.as_strided({elements}, {1}, 0)
      .to(device, /*non_blocking=*/false, /*copy=*/true)
      .as_strided(t.sizes(), t.strides(), t.storage_offset());
}

}  // namespace

namespace {

void check_few_rows(const FewRows& few, const Heads& h, at::ScalarType dtype,
                    at::Generator& generator, at::Device device, KernelPolicy policy) {
  DecodeAttention call = few_rows_call(few, h, dtype, generator);
  const auto there = [&](const Tensor& t) { return moved(t, device); };
  for (const bool causal : {false, true}) {
    // Each row has a key of its own.
    if (causal && !std::ranges::equal(few.rows, few.keys, std::less_equal())) continue;
    call.causal = causal;
    const Tensor got =
        decode_attention({there(call.q), there(call.keys), there(call.values),
                          there(call.key_count), there(call.query_starts), call.scale, causal,
                          causal ? *std::ranges::max_element(few.rows) : 0},
                         policy);
    check_sums(got, few_rows_reference(call),
               fmt::format("{} {}/{} x {}, {}{}", c10::toString(dtype), h.heads, h.kv_heads,
                           h.head_dim, describe(few), causal ? ", causal" : ""),
               *std::ranges::max_element(few.keys));
    CHECK(got.is_contiguous());
  }
}

}  // namespace

void check_decode_attention(at::Device device, KernelPolicy policy) {
  at::Generator generator = at::detail::createCPUGenerator(15);
  std::vector<FewRows> cases = {{{3}, {40}, true},
                                {{16}, {700}, false},
                                {{2, 2}, {700, 37}, true},
                                {{16, 5}, {16, 600}, true},
                                {{9}, {80}, false},
                                {{1, 16, 3}, {5, 300, 1}, false},
                                {{1, 0, 2, 1}, {33, 9, 257, 64}, true}};
  for (const std::int32_t count : {1, 2, 31, 33, 257, 700}) cases.push_back({{1}, {count}, false});
  // The markers of a picture of 1024x1024.
  const FewRows markers = {{2, 2}, {4162, 4098}, false, 4170};
  // Of so many rows keys are split into fewer parts.
  const FewRows drafts = {{16, 5}, {2100, 930}, false, 2110};
  // What a GPU does otherwise at such lengths, ATen and the reference do not.
  const auto long_too = [&](at::ScalarType dtype) {
    return device.is_cuda() || dtype == at::kBFloat16;
  };
  for (const at::ScalarType dtype : kDtypes) {
    for (const Heads& h : {Heads{28, 4, 128}, Heads{4, 2, 16}, Heads{3, 3, 64}, Heads{24, 2, 32}}) {
      std::vector<FewRows> of_heads = cases;
      if (h.head_dim == 128 && long_too(dtype)) of_heads.insert(of_heads.end(), {markers, drafts});
      for (const FewRows& few : of_heads) {
        check_few_rows(few, h, dtype, generator, device, policy);
      }
    }
  }
  // Single rows of which a thread takes several turns.
  for (const at::ScalarType dtype : kDtypes) {
    if (!long_too(dtype)) continue;
    for (const Heads& h : {Heads{28, 4, 128}, Heads{8, 2, 128}}) {
      for (const std::int32_t count : {1025, 4162})
        check_few_rows({{1}, {count}, false, 4170}, h, dtype, generator, device, policy);
    }
  }
  const DecodeAttention none = few_rows_call({{0}, {9}, false}, {4, 2, 16}, at::kFloat, generator);
  CHECK(decode_attention({moved(none.q, device),
                          moved(none.keys, device),
                          moved(none.values, device),
                          moved(none.key_count, device),
                          {},
                          1},
                         policy)
            .numel() == 0);
}

void check_decode_attention_arguments() {
  at::Generator generator = at::detail::createCPUGenerator(15);
  const DecodeAttention good =
      few_rows_call({{2, 1}, {9, 4}, false}, {4, 2, 16}, at::kFloat, generator);
  const auto refused = [&](auto change) {
    DecodeAttention call = good;
    change(call);
    CHECK_THROWS_AS(decode_attention(call, KernelPolicy::automatic), c10::Error);
  };
  CHECK_NOTHROW(decode_attention(good, KernelPolicy::automatic));
  refused([](auto& c) { c.q = c.q[0]; });
  refused([](auto& c) { c.q = c.q.narrow(1, 0, 3); });
  refused([](auto& c) { c.q = c.q.transpose(0, 1).contiguous().transpose(0, 1); });
  refused([](auto& c) { c.keys = c.keys.to(at::kHalf); });
  refused([](auto& c) { c.values = c.values.narrow(1, 0, 30); });
  refused([](auto& c) { c.values = c.values.transpose(0, 1).contiguous().transpose(0, 1); });
  refused([](auto& c) { c.key_count = c.key_count.narrow(0, 0, 1); });
  refused([](auto& c) { c.key_count = c.key_count.to(at::kLong); });
  refused([](auto& c) { c.query_starts = Tensor(); });
  refused([](auto& c) { c.query_starts = c.key_count; });
  refused([](auto& c) { c.scale = 0; });
}

namespace {

Tensor literal(std::initializer_list<double> values, at::IntArrayRef shape, at::ScalarType dtype) {
  return at::tensor(at::ArrayRef<double>(values), at::kDouble).to(dtype).view(shape);
}

// Python: Qwen2RMSNorm and F.silu(gate) * up of torch 2.11 on the CPU, on the literals below.
struct RecordedRows {
  at::ScalarType dtype;
  std::initializer_list<double> norm, sum, add_norm, silu;
};

void check_recorded_rows(const RecordedRows& r, at::Device device, KernelPolicy policy) {
  const Tensor cpu =
      literal({1.5, -2.25, 0.3, 4.7, 1000, -3000, 0.125, 20, 0, 0, 0, 0}, {3, 4}, r.dtype);
  Tensor x = cpu.to(device, /*non_blocking=*/false, /*copy=*/true);
  const Tensor delta =
      literal({0.1, 0.2, -0.3, 0.77, 3, -7, 0.001, 20, 0, 0, 0, 0}, {3, 4}, r.dtype).to(device);
  const Tensor weight = literal({1.1, 0.9, -0.7, 1.3}, {4}, r.dtype).to(device);
  const Tensor gate_up =
      literal({1.5, -2.25, 0.3, 4.7, 1.1, -0.6, -100, 20, 0, 3, -7.3, 9}, {2, 6}, r.dtype)
          .to(device);
  const std::string what = c10::toString(r.dtype);
  check_close(rms_norm(x, weight, kEps, policy), literal(r.norm, {3, 4}, r.dtype), 0, what);
  const NormRoute all{weight, RowSet::range(0, 3)};
  const Tensor y = add_rms_norm_(x, delta, std::span(&all, 1), kEps, policy);
  check_close(x, literal(r.sum, {3, 4}, r.dtype), 0, what);
  check_close(y, literal(r.add_norm, {3, 4}, r.dtype), 0, what);
  check_close(silu_mul(gate_up, policy), literal(r.silu, {2, 3}, r.dtype), 0, what);
}

// Python: Qwen2RMSNorm, apply_rotary_pos_emb of transformers, positions 5 and 1234, theta 1e6.
struct RecordedRope {
  at::ScalarType dtype;
  RopeRounding rounding;
  std::initializer_list<double> q, k;
};

void check_recorded_rope(const RecordedRope& r, at::Device device, KernelPolicy policy) {
  QkNormRope args;
  args.heads = 2;
  args.kv_heads = 1;
  args.head_dim = 4;
  args.eps = kEps;
  args.rounding = r.rounding;
  args.qkv = literal({0.5,  -1.25, 2.1, 0.3, 1.7,  0.9,  -0.4,   0.11, 3.3, -1.9, 0.07,
                      -0.6, 1,     2,   3,   4,    -7.5, 100.25, 20.1, -33, 0.01, -0.02,
                      0.03, 0.04,  1.1, 2.2, -3.3, 4.4,  -5,     6,    -7,  8.5},
                     {2, 16}, r.dtype)
                 .to(device);
  args.routes = {{literal({1.1, 0.9, -0.7, 1.3}, {4}, r.dtype).to(device),
                  literal({0.8, 1.2, 1.05, -0.95}, {4}, r.dtype).to(device), RowSet::range(0, 2)}};
  std::tie(args.cos, args.sin) =
      rope_table_at(literal({5, 1234}, {2}, at::kLong).to(device), 4, r.dtype);
  args.slots =
      literal({4, 1}, {2}, at::kLong).to(device);  // sample 1, position 1; sample 0, position 1
  args.keys = at::zeros({2, 3, 1, 4}, args.qkv.options());
  args.values = at::zeros({2, 3, 1, 4}, args.qkv.options());
  const Tensor q = qk_norm_rope(args, policy);
  const std::string what =
      fmt::format("{} rounding {}", c10::toString(r.dtype), static_cast<int>(r.rounding));
  const bool exact = r.dtype != at::kFloat;
  const Tensor expected_q = literal(r.q, {2, 2, 4}, r.dtype), k = literal(r.k, {2, 4}, r.dtype);
  const Tensor keys = args.keys.cpu().view({6, 4}), values = args.values.cpu().view({6, 4});
  const Tensor found_k = at::stack({keys[4], keys[1]});
  check_rotated(q, expected_q, what);
  check_rotated(found_k, k, what);
  if (exact) {
    CAPTURE(what);
    CHECK(at::equal(q.cpu(), expected_q));
    CHECK(at::equal(found_k, k));
  }
  CHECK(at::equal(values[4], literal({1, 2, 3, 4}, {4}, r.dtype)));
  CHECK(at::equal(values[1], literal({-5, 6, -7, 8.5}, {4}, r.dtype)));
  CHECK(count(keys != 0) == 8);
}

}  // namespace

void check_recorded(at::Device device, KernelPolicy policy) {
  check_recorded_rows(
      {at::kFloat,
       {0.607656538, -0.745760202, -0.0773380995, 2.25017023, 0.695687175, -1.70759571,
        -5.53387508e-05, 0.0164435152, 0, 0, 0, 0},
       {1.60000002, -2.04999995, 0, 5.46999979, 1003, -3007, 0.126000002, 40, 0, 0, 0, 0},
       {0.581176281, -0.609244406, 0, 2.34815001, 0.696062088, -1.70738029, -5.56445848e-05,
        0.0328063294, 0, 0, 0, 0},
       {5.76389933, -0.235989928, -0.103399664, 0, -146, 0}},
      device, policy);
  check_recorded_rows({at::kBFloat16,
                       {0.609375, -0.74609375, -0.0776367188, 2.234375, 0.6953125, -1.703125,
                        -5.50746918e-05, 0.0163574219, 0, 0, 0, 0},
                       {1.6015625, -2.046875, 0, 5.46875, 1004, -3008, 0.125976562, 40, 0, 0, 0, 0},
                       {0.58203125, -0.60546875, 0, 2.34375, 0.6953125, -1.703125, -5.57899475e-05,
                        0.0327148438, 0, 0, 0, 0},
                       {5.75, -0.236328125, -0.104003906, 0, -146, 0}},
                      device, policy);
  check_recorded_rows(
      {at::kHalf,
       {0.607421875, -0.745605469, -0.0773925781, 2.25, 0.6953125, -1.70800781, -5.53131104e-05,
        0.0164489746, 0, 0, 0, 0},
       {1.59960938, -2.05078125, 0, 5.46875, 1003, -3008, 0.125976562, 40, 0, 0, 0, 0},
       {0.581054688, -0.609375, 0, 2.34765625, 0.695800781, -1.70800781, -5.56111336e-05,
        0.0327758789, 0, 0, 0, 0},
       {5.765625, -0.235839844, -0.10345459, 0, -146, 0}},
      device, policy);
  for (const auto rounding : {RopeRounding::every_step, RopeRounding::at_the_end}) {
    check_recorded_rope(
        {at::kFloat,
         rounding,
         {-0.997906148, -0.897074282, -0.751763761, 0.305970013, 0.812034607, 0.822531462,
          -1.74183607, 0.149456978, 0.27961272, 1.30558801, 0.116428882, 1.31808639, 0.140722871,
          -2.00796056, 0.853541136, 0.00713217258},
         {0.425028443, -1.18418884, -1.30240393, 0.289763987, 0.459076017, 1.59921312, 1.09434104,
          0.368579596}},
        device, policy);
  }
  check_recorded_rope(
      {at::kBFloat16,
       RopeRounding::every_step,
       {-1.0, -0.89453125, -0.75, 0.30859375, 0.8125, 0.8203125, -1.7421875, 0.1484375, 0.28125,
        1.3046875, 0.116210938, 1.3125, 0.140625, -2.015625, 0.8515625, 0.00390625},
       {0.421875, -1.1875, -1.296875, 0.291015625, 0.45703125, 1.6015625, 1.09375, 0.373046875}},
      device, policy);
  check_recorded_rope(
      {at::kBFloat16,
       RopeRounding::at_the_end,
       {-0.9921875, -0.8984375, -0.75, 0.306640625, 0.8125, 0.8203125, -1.7421875, 0.1484375,
        0.279296875, 1.3046875, 0.116210938, 1.3203125, 0.140625, -2.0, 0.8515625, 0.00497436523},
       {0.423828125, -1.1875, -1.3046875, 0.291015625, 0.455078125, 1.6015625, 1.0859375,
        0.373046875}},
      device, policy);
}

}  // namespace diptych::testing
