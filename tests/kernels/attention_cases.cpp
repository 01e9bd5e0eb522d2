#include "tests/kernels/attention_cases.h"

#include <cmath>
#include <limits>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "kernels/quantize_attention/quantize_attention.h"
#include "tests/kernels/field.h"

namespace diptych::testing {
namespace {

constexpr std::int64_t kHeadDim = kernels::kHopperHeadDim;

struct Shape {
  std::vector<std::int64_t> queries, keys;
  std::int64_t capacity, heads, kv_heads;
  double growth = 0;  // of keys over the sample: the largest logit is then in a late tile
  double sink = 0;    // the logit of one key, beside those of the others
  double mean = 0;    // of values: sums grow

  double work() const {
    double work = 0;
    for (std::size_t i = 0; i < queries.size(); ++i)
      work += static_cast<double>(queries[i] * keys[i] * heads);
    return work;
  }
};

// Tensors of one call, as slices of larger ones.
struct Operands {
  Tensor q, keys, values, key_counts, query_starts;
  Tensor last_key_bias;  // or undefined
  std::vector<std::int64_t> queries;

  static Operands draw(at::Generator& generator, const Shape& shape, at::ScalarType dtype,
                       at::Device device) {
    const auto samples = static_cast<std::int64_t>(shape.queries.size());
    std::vector<std::int64_t> starts = {0};
    for (const std::int64_t queries : shape.queries) starts.push_back(starts.back() + queries);
    const auto random = [&](at::IntArrayRef sizes) {
      return at::randn(sizes, generator, at::kFloat);
    };
    Operands made;
    made.queries = shape.queries;
    made.q = random({starts.back(), shape.heads + 2 * shape.kv_heads, kHeadDim})
                 .to(dtype)
                 .to(device)
                 .narrow(1, 0, shape.heads);
    const auto rows = [&](double growth) {
      Tensor all = random({samples, shape.capacity + 3, shape.kv_heads, kHeadDim});
      all *=
          (at::arange(all.size(1), at::kFloat) * growth / shape.capacity + 1).view({1, -1, 1, 1});
      // What does not count must not change anything.
      for (std::int64_t s = 0; s < samples; ++s) {
        const std::int64_t counted = shape.keys[static_cast<std::size_t>(s)];
        all[s].narrow(0, counted, all.size(1) - counted).fill_(1e4);
      }
      return all.to(dtype).to(device).narrow(1, 0, shape.capacity);
    };
    made.keys = rows(shape.growth);
    made.values = rows(0);
    made.key_counts = at::tensor(shape.keys, at::kInt).to(device);
    made.query_starts = at::tensor(starts, at::kInt).to(device);
    return made;
  }

  // The last key of a sample stands for hundreds.
  void draw_bias(at::Generator& generator) {
    last_key_bias = at::rand({keys.size(0)}, generator, at::kFloat).add_(5.5).to(keys.device());
  }

  kernels::HopperAttentionArgs args(bool causal) const {
    kernels::HopperAttentionArgs args;
    args.q = q.data_ptr();
    args.keys = keys.data_ptr();
    args.values = values.data_ptr();
    args.key_counts = key_counts.data_ptr<std::int32_t>();
    args.query_starts = query_starts.data_ptr<std::int32_t>();
    args.rows = q.size(0);
    args.samples = keys.size(0);
    args.heads = q.size(1);
    args.kv_heads = keys.size(2);
    args.capacity = keys.size(1);
    for (const std::int64_t count : queries) {
      args.query_tiles += kernels::hopper_query_tiles(count);
      args.query_tile_pairs += kernels::hopper_query_tile_pairs(count);
    }
    args.q_stride = q.stride(0);
    args.q_head_stride = q.stride(1);
    args.key_stride = keys.stride(1);
    args.value_stride = values.stride(1);
    args.key_sample_stride = keys.stride(0);
    args.value_sample_stride = values.stride(0);
    if (last_key_bias.defined()) args.last_key_bias = last_key_bias.data_ptr<float>();
    args.scale = static_cast<float>(1 / std::sqrt(static_cast<double>(kHeadDim)));
    args.causal = causal;
    args.dtype = kernel_dtype(q.scalar_type());
    return args;
  }
};

struct Attended {
  Tensor out, log_sum_exp;  // [rows, heads, head_dim], [rows, heads]
};

Attended by_float64(const Operands& x, const kernels::HopperAttentionArgs& args) {
  const Tensor starts = x.query_starts.cpu(), counts = x.key_counts.cpu();
  const std::int64_t group = args.heads / args.kv_heads;
  std::vector<Tensor> outs, sums;
  for (std::int64_t s = 0; s < args.samples; ++s) {
    const std::int64_t first = starts[s].item<std::int32_t>(),
                       keys = counts[s].item<std::int32_t>();
    const std::int64_t queries = starts[s + 1].item<std::int32_t>() - first;
    const auto of_heads = [&](const Tensor& rows) {  // [heads, keys, head_dim]
      return rows[s].narrow(0, 0, keys).to(at::kDouble).repeat_interleave(group, 1).transpose(0, 1);
    };
    const Tensor q = x.q.narrow(0, first, queries).to(at::kDouble).transpose(0, 1);
    Tensor logits = at::matmul(q, of_heads(x.keys).transpose(1, 2)) * args.scale;
    if (x.last_key_bias.defined()) logits.select(2, keys - 1) += x.last_key_bias[s].to(at::kDouble);
    if (args.causal) {
      const Tensor hidden =
          at::ones({queries, keys}, logits.options().dtype(at::kBool)).triu(keys - queries + 1);
      logits.masked_fill_(hidden, -std::numeric_limits<double>::infinity());
    }
    outs.push_back(at::matmul(at::softmax(logits, -1), of_heads(x.values)).transpose(0, 1));
    sums.push_back(at::logsumexp(logits, -1).t());
  }
  return {at::cat(outs), at::cat(sums)};
}

double relative_norm(const Tensor& got, const Tensor& wanted) {
  const Tensor to = wanted.to(at::kDouble);
  return (got.to(at::kDouble) - to).norm().item<double>() / to.norm().item<double>();
}

// The log-sum-exp of a call, transposed, with a row too many.
struct Sums {
  Tensor all;

  void check(const Tensor& wanted, double tolerance) const {
    const std::int64_t rows = wanted.size(0);
    const Tensor got = all.narrow(1, 0, rows).t();
    CHECK((got.to(at::kDouble) - wanted).abs().max().item<double>() <=
          tolerance * std::max(1.0, wanted.abs().max().item<double>()));
    CHECK(count(all.select(1, rows) != -77.0) == 0);
  }
};

template <typename Args>
Sums ask_for_sums(Args& args, const at::TensorOptions& options) {
  const Sums sums{at::full({args.heads, args.rows + 1}, -77.0, options.dtype(at::kFloat))};
  args.log_sum_exp = sums.all.template data_ptr<float>();
  args.log_sum_exp_stride = 1;
  args.log_sum_exp_head_stride = args.rows + 1;
  return sums;
}

void check_shape(const Runner<kernels::HopperAttentionArgs>& kernel, at::Generator& generator,
                 const Shape& shape, at::ScalarType dtype, bool causal, bool biased) {
  Operands x = Operands::draw(generator, shape, dtype, kernel.device);
  if (biased) x.draw_bias(generator);
  kernels::HopperAttentionArgs args = x.args(causal);
  const Field out = make_field(args.rows, args.heads * kHeadDim, Layout::packed, x.q.options());
  args.out = out.rows.data_ptr();
  const Sums sums = ask_for_sums(args, at::TensorOptions(kernel.device));
  kernel.run(args);
  const Attended wanted = by_float64(x, args);
  const Tensor got = out.rows.view({args.rows, args.heads, kHeadDim});
  // Weights and outputs are rounded once each.
  CHECK(relative_norm(got, wanted.out) <= (dtype == at::kHalf ? 0.0006 : 0.004));
  sums.check(wanted.log_sum_exp, 1e-5);
  out.rows.fill_(kCanary);
  CHECK(count(out.base != kCanary) == 0);
}

}  // namespace

void check_hopper_attention(const Runner<kernels::HopperAttentionArgs>& kernel) {
  at::Generator generator = at::detail::createCPUGenerator(41);
  for (const at::ScalarType dtype : {at::kBFloat16, at::kHalf}) {
    for (const Shape& shape : {Shape{{1}, {1}, 1, 1, 1},
                               {{1}, {5}, 8, 4, 2},
                               {{64}, {192}, 192, 2, 1},
                               {{65, 1}, {193, 191}, 200, 4, 2},
                               {{3, 17}, {384, 385}, 400, 6, 2, 12},
                               {{1, 0, 2, 0}, {30, 7, 170, 1}, 180, 2, 1},
                               {{128}, {576}, 577, 2, 2},
                               {{129, 130, 1}, {500, 130, 30}, 512, 7, 1, 8},
                               {{256}, {1000}, 1024, 12, 12},
                               {{257, 300}, {1300, 300}, 1300, 28, 4, 20},
                               {{1026, 1026}, {1100, 1026}, 1100, 28, 4},
                               {{2304}, {2400}, 2400, 16, 2, 8},
                               {{7}, {300}, 300, 2, 1, 300},
                               {{20, 9}, {1000, 700}, 1000, 4, 2, 300},
                               {{600}, {1500}, 1500, 4, 2, 300}}) {
      if (shape.work() > 200'000 && kernel.device.is_cpu()) continue;
      for (const auto& [causal, biased] :
           {std::pair{false, false}, std::pair{true, false}, std::pair{false, true}}) {
        const std::string what =
            fmt::format("{} queries {} keys {} heads {}/{} causal {} biased {}",
                        c10::toString(dtype), fmt::join(shape.queries, ", "),
                        fmt::join(shape.keys, ", "), shape.heads, shape.kv_heads, causal, biased);
        CAPTURE(what);
        check_shape(kernel, generator, shape, dtype, causal, biased);
      }
    }
  }
}

namespace {

// run(operands) -> [rows, heads, head_dim]
template <typename Run>
void check_alone(const Operands& all, const Run& run) {
  const bool small = all.q.is_cpu();
  const Tensor beside = run(all);
  Operands one = all;
  one.q = all.q.narrow(0, 0, 30);
  one.queries = {30};
  one.keys = all.keys.narrow(0, 0, 1);
  one.values = all.values.narrow(0, 0, 1);
  one.key_counts = all.key_counts.narrow(0, 0, 1);
  one.query_starts = at::tensor({0, 30}, at::kInt).to(all.q.device());
  CHECK(at::equal(run(one), beside.narrow(0, 0, 30)));
  // Of many rows, whose tiles clusters take in pairs, the first ones.
  Operands many = one;
  const std::int64_t copies = small ? 2 : 120;
  many.q = at::cat(std::vector<Tensor>(static_cast<std::size_t>(copies), one.q));
  many.queries = {30 * copies};
  many.query_starts = at::tensor({0, static_cast<int>(30 * copies)}, at::kInt).to(all.q.device());
  const Tensor out = run(many);
  for (std::int64_t i = 0; i < copies; ++i)
    CHECK(at::equal(out.narrow(0, 30 * i, 30), beside.narrow(0, 0, 30)));
}

// Of two samples, the first of 30 rows. Keys grow, so that rows rescale their sums, each when its
// own logits ask for it.
template <typename Check>
void for_growing_keys(at::Device device, at::ArrayRef<at::ScalarType> dtypes, const Check& check) {
  at::Generator generator = at::detail::createCPUGenerator(42);
  const std::int64_t heads = device.is_cpu() ? 2 : 28, keys = device.is_cpu() ? 40 : 1700;
  for (const at::ScalarType dtype : dtypes) {
    for (const double growth : {12.0, 300.0}) {
      CAPTURE(growth);
      check(
          Operands::draw(generator, {{30, 9}, {keys, 25}, keys, heads, 1, growth}, dtype, device));
    }
  }
}

}  // namespace

void check_hopper_attention_alone(const Runner<kernels::HopperAttentionArgs>& kernel) {
  for_growing_keys(kernel.device, {at::kBFloat16, at::kHalf}, [&](const Operands& all) {
    check_alone(all, [&](const Operands& x) {
      kernels::HopperAttentionArgs args = x.args(false);
      const Tensor out = at::full({args.rows, args.heads, kHeadDim}, kCanary, x.q.options());
      args.out = out.data_ptr();
      kernel.run(args);
      return out;
    });
  });
}

namespace {

// Of operands of 16 bits, what quantize_attention makes of them, on their device.
struct Fp8Operands {
  Tensor q, keys, values, scales, row_scales;

  static Fp8Operands of(const Operands& x) {
    const kernels::HopperAttentionArgs plain = x.args(false);
    const std::int64_t blocks = kernels::hopper_fp8_value_blocks(plain.capacity);
    const auto e4m3 = at::TensorOptions(at::kFloat8_e4m3fn);
    const Tensor q = x.q.cpu(), keys = x.keys.cpu(), values = x.values.cpu(),
                 key_counts = x.key_counts.cpu();
    Fp8Operands made = {
        at::empty(q.sizes(), e4m3), at::empty(keys.sizes(), e4m3),
        at::empty({plain.samples, plain.kv_heads, blocks, kernels::kValueBlockBytes}, e4m3),
        at::empty({kernels::kAttentionScales}, at::kFloat), at::empty({plain.rows}, at::kFloat)};
    kernels::QuantizeAttentionArgs args;
    args.q = q.data_ptr();
    args.keys = keys.data_ptr();
    args.values = values.data_ptr();
    args.key_counts = key_counts.data_ptr<std::int32_t>();
    args.q_values = made.q.data_ptr();
    args.key_values = made.keys.data_ptr();
    args.value_values = made.values.data_ptr();
    args.scales = made.scales.data_ptr<float>();
    args.row_scales = made.row_scales.data_ptr<float>();
    args.rows = plain.rows;
    args.q_width = plain.heads * kHeadDim;
    args.samples = plain.samples;
    args.capacity = plain.capacity;
    args.kv_width = plain.kv_heads * kHeadDim;
    args.q_stride = q.stride(0);
    args.key_stride = keys.stride(0);
    args.value_stride = values.stride(0);
    args.key_row_stride = keys.stride(1);
    args.value_row_stride = values.stride(1);
    args.value_blocks = blocks;
    args.dtype = plain.dtype;
    kernels::quantize_attention_ref(args);
    for (Tensor* const t : {&made.q, &made.keys, &made.values, &made.scales, &made.row_scales})
      *t = t->to(x.q.device());
    return made;
  }

  Tensor wide(const Tensor& x, kernels::AttentionScale which) const {
    return x.to(at::kDouble) * scales[static_cast<int>(which)].item<double>();
  }
};

// Blocks of values as rows: e4m3 [samples, keys, kv_heads, head_dim].
Tensor values_in_rows(const Tensor& blocks, std::int64_t keys) {
  const Tensor from = blocks.cpu().view(at::kByte);
  const Tensor rows = at::empty({from.size(0), keys, from.size(1), kHeadDim}, from.options());
  for (std::int64_t key = 0; key < keys; ++key) {
    std::vector<std::int64_t> places;
    for (std::int64_t dim = 0; dim < kHeadDim; ++dim)
      places.push_back(kernels::place_in_value_block(key % kernels::kValueBlockKeys, dim));
    rows.select(1, key).copy_(from.select(2, key / kernels::kValueBlockKeys)
                                  .index_select(2, at::tensor(places, at::kLong)));
  }
  return rows.view(at::kFloat8_e4m3fn).to(blocks.device());
}

struct Fp8Attended {
  Tensor out;  // e4m3 [rows, heads, head_dim], which was written inside a field of canaries
  Sums sums;
};

Fp8Attended attend_in_fp8(const Runner<kernels::HopperFp8AttentionArgs>& kernel, const Operands& x,
                          const Fp8Operands& fp8, bool wants_sums = true) {
  constexpr double kCanaryByte = 119;
  const kernels::HopperAttentionArgs plain = x.args(false);
  const Field out = make_field(plain.rows, plain.heads * kHeadDim, Layout::packed,
                               fp8.q.options().dtype(at::kByte), kCanaryByte);
  kernels::HopperFp8AttentionArgs args;
  args.q = fp8.q.data_ptr();
  args.keys = fp8.keys.data_ptr();
  args.values = fp8.values.data_ptr();
  const auto scale = [&](kernels::AttentionScale which) {
    return fp8.scales.data_ptr<float>() + static_cast<int>(which);
  };
  args.q_scale = scale(kernels::AttentionScale::q);
  args.key_scale = scale(kernels::AttentionScale::keys);
  args.key_counts = plain.key_counts;
  args.query_starts = plain.query_starts;
  args.out = out.rows.data_ptr();
  args.rows = plain.rows;
  args.samples = plain.samples;
  args.heads = plain.heads;
  args.kv_heads = plain.kv_heads;
  args.capacity = plain.capacity;
  args.value_blocks = fp8.values.size(2);
  for (const std::int64_t count : x.queries)
    args.query_tile_pairs += kernels::hopper_fp8_query_tile_pairs(count);
  args.scale = plain.scale;
  Sums sums;
  if (wants_sums) sums = ask_for_sums(args, x.q.options());
  kernel.run(args);
  Tensor got = out.rows.clone().view(at::kFloat8_e4m3fn).view({plain.rows, plain.heads, kHeadDim});
  out.rows.fill_(kCanaryByte);
  CHECK(count(out.base != kCanaryByte) == 0);
  return {got, sums};
}

}  // namespace

void check_hopper_fp8_attention(const Runner<kernels::HopperFp8AttentionArgs>& kernel) {
  at::Generator generator = at::detail::createCPUGenerator(43);
  for (const Shape& shape : {Shape{{1}, {1}, 1, 1, 1},
                             {{1}, {5}, 8, 4, 2},
                             {{64}, {96}, 96, 2, 1},
                             {{65, 1}, {97, 95}, 100, 4, 2},
                             {{3, 17}, {320, 321}, 400, 6, 2, 12},
                             {{1, 0, 2, 0}, {30, 7, 170, 1}, 180, 2, 1},
                             {{192}, {480}, 481, 2, 2},
                             {{193, 130, 1}, {500, 130, 30}, 512, 7, 1, 8},
                             {{384}, {1000}, 1024, 12, 12},
                             {{385, 300}, {1300, 300}, 1300, 28, 4, 20},
                             {{2304}, {2400}, 2400, 16, 2, 8},
                             {{7}, {300}, 300, 2, 1, 300},
                             {{20, 9}, {1000, 700}, 1000, 4, 2, 300},
                             {{600}, {1500}, 1500, 4, 2, 300},
                             {{5, 9}, {1536, 1537}, 1537, 2, 1, 0, 0, 1},  // 16 tiles, 17
                             {{9, 70}, {3072, 3073}, 3073, 2, 1, 0, 0, 1},
                             {{9, 70}, {1632, 1728}, 1728, 2, 1, 0, 0, 1},  // 17, 18, all whole
                             {{5, 3, 6}, {1700, 40, 3300}, 3300, 2, 1, 12, 0, 1},
                             {{300, 200}, {4700, 1600}, 4700, 4, 2, 300},
                             {{20}, {3100}, 3100, 4, 2, 300},
                             {{16}, {4000}, 4000, 2, 1, 0, 9, 1},
                             {{200}, {32000}, 32000, 2, 1, 0, 9, 1},
                             {{200}, {32000}, 32000, 2, 1, 0, 0, 1}}) {
    if (shape.work() > 200'000 && kernel.device.is_cpu()) continue;
    const std::string what =
        fmt::format("queries {} keys {} heads {}/{} growth {} sink {} mean {}",
                    fmt::join(shape.queries, ", "), fmt::join(shape.keys, ", "), shape.heads,
                    shape.kv_heads, shape.growth, shape.sink, shape.mean);
    CAPTURE(what);
    Operands x = Operands::draw(generator, shape, at::kBFloat16, kernel.device);
    if (shape.sink > 0) {  // all rows weigh one key by so much more than the others
      x.q.select(2, 0).fill_(4);
      x.keys.select(3, 0).fill_(0);
      x.keys.select(1, 3).select(2, 0).fill_(shape.sink / 4 * std::sqrt(128.0));
    }
    // Shows whether the many small weights count. Not the same in all dimensions: the result's
    // rounding would be one, too.
    if (shape.mean > 0)
      x.values.add_(at::linspace(0.5, 1.5, kHeadDim, x.values.options()), shape.mean);
    const Fp8Operands fp8 = Fp8Operands::of(x);
    // Over the operands as they are rounded, what is left is the rounding of weights and output.
    using enum kernels::AttentionScale;
    Operands rounded = x;
    rounded.q = fp8.wide(fp8.q, q);
    rounded.keys = fp8.wide(fp8.keys, keys);
    rounded.values = fp8.wide(values_in_rows(fp8.values, x.keys.size(1)), values);
    const Fp8Attended attended = attend_in_fp8(kernel, x, fp8);
    const Attended wanted = by_float64(rounded, x.args(false));
    const Tensor got =
        attended.out.to(at::kDouble) * fp8.row_scales.to(at::kDouble).view({-1, 1, 1});
    CHECK(relative_norm(got, wanted.out) <= 0.045);
    // Logits are sums of fewer bits than float32's (kernels/device_attention.cuh).
    attended.sums.check(wanted.log_sum_exp, kernel.device.is_cpu() ? 1e-5 : 1e-3);
    const Tensor without = attend_in_fp8(kernel, x, fp8, /*wants_sums=*/false).out;
    CHECK(at::equal(without.view(at::kByte), attended.out.view(at::kByte)));
  }
}

void check_hopper_fp8_attention_alone(const Runner<kernels::HopperFp8AttentionArgs>& kernel) {
  for_growing_keys(kernel.device, {at::kBFloat16}, [&](Operands all) {
    // Keys and values have one scale over all samples: the largest must be in the first one.
    for (const Tensor& rows : {all.keys, all.values}) rows[1].clamp_(-1, 1);
    check_alone(all, [&](const Operands& x) {
      return attend_in_fp8(kernel, x, Fp8Operands::of(x)).out.view(at::kByte);
    });
  });
}

}  // namespace diptych::testing
