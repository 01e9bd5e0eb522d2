#include "tests/kernels/attention_cases.h"

#include <cmath>
#include <limits>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "tests/kernels/field.h"

namespace diptych::testing {
namespace {

constexpr std::int64_t kHeadDim = kernels::kHopperHeadDim;

struct Shape {
  std::vector<std::int64_t> queries, keys;
  std::int64_t capacity, heads, kv_heads;
  double growth = 0;  // of keys over the sample: the largest logit is then in a late tile

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

void check_shape(const Runner<kernels::HopperAttentionArgs>& kernel, at::Generator& generator,
                 const Shape& shape, at::ScalarType dtype, bool causal) {
  const Operands x = Operands::draw(generator, shape, dtype, kernel.device);
  kernels::HopperAttentionArgs args = x.args(causal);
  const Field out = make_field(args.rows, args.heads * kHeadDim, Layout::packed, x.q.options());
  const Tensor sums = at::full({args.heads, args.rows + 1}, -77.0,
                               at::TensorOptions(kernel.device).dtype(at::kFloat));
  args.out = out.rows.data_ptr();
  args.log_sum_exp = sums.data_ptr<float>();
  args.log_sum_exp_stride = 1;
  args.log_sum_exp_head_stride = args.rows + 1;
  kernel.run(args);
  const Attended wanted = by_float64(x, args);
  const Tensor got = out.rows.view({args.rows, args.heads, kHeadDim});
  // Weights and outputs are rounded once each.
  CHECK(relative_norm(got, wanted.out) <= (dtype == at::kHalf ? 0.0006 : 0.004));
  const Tensor got_sums = sums.narrow(1, 0, args.rows).t();
  CHECK((got_sums.to(at::kDouble) - wanted.log_sum_exp).abs().max().item<double>() <=
        1e-5 * std::max(1.0, wanted.log_sum_exp.abs().max().item<double>()));
  CHECK(count(sums.select(1, args.rows) != -77.0) == 0);
  out.rows.fill_(kCanary);
  CHECK(count(out.base != kCanary) == 0);
}

}  // namespace

void check_hopper_attention(const Runner<kernels::HopperAttentionArgs>& kernel) {
  at::Generator generator = at::detail::createCPUGenerator(41);
  for (const at::ScalarType dtype : {at::kBFloat16, at::kHalf}) {
    for (const Shape& shape : {Shape{{1}, {1}, 1, 1, 1},
                               {{1}, {5}, 8, 4, 2},
                               {{64}, {160}, 160, 2, 1},
                               {{65, 1}, {161, 159}, 170, 4, 2},
                               {{3, 17}, {320, 321}, 400, 6, 2, 12},
                               {{1, 0, 2, 0}, {30, 7, 170, 1}, 180, 2, 1},
                               {{128}, {480}, 481, 2, 2},
                               {{129, 130, 1}, {500, 130, 30}, 512, 7, 1, 8},
                               {{256}, {1000}, 1024, 12, 12},
                               {{257, 300}, {1300, 300}, 1300, 28, 4, 20},
                               {{1026, 1026}, {1100, 1026}, 1100, 28, 4},
                               {{2304}, {2400}, 2400, 16, 2, 8}}) {
      if (shape.work() > 200'000 && kernel.device.is_cpu()) continue;
      for (const bool causal : {false, true}) {
        const std::string what =
            fmt::format("{} queries {} keys {} heads {}/{} causal {}", c10::toString(dtype),
                        fmt::join(shape.queries, ", "), fmt::join(shape.keys, ", "), shape.heads,
                        shape.kv_heads, causal);
        CAPTURE(what);
        check_shape(kernel, generator, shape, dtype, causal);
      }
    }
  }
}

void check_hopper_attention_alone(const Runner<kernels::HopperAttentionArgs>& kernel) {
  at::Generator generator = at::detail::createCPUGenerator(42);
  const bool small = kernel.device.is_cpu();
  const std::int64_t heads = small ? 2 : 28, keys = small ? 40 : 700;
  // Keys that grow, so that rows rescale their sums, each when its own logits ask for it.
  const Operands all = Operands::draw(generator, {{30, 9}, {keys, 25}, keys, heads, 1, 12},
                                      at::kBFloat16, kernel.device);
  const auto run = [&](const Operands& x) {
    kernels::HopperAttentionArgs args = x.args(false);
    const Tensor out = at::full({args.rows, args.heads, kHeadDim}, kCanary, x.q.options());
    args.out = out.data_ptr();
    kernel.run(args);
    return out;
  };
  const Tensor beside = run(all);
  Operands one = all;
  one.q = all.q.narrow(0, 0, 30);
  one.queries = {30};
  one.keys = all.keys.narrow(0, 0, 1);
  one.values = all.values.narrow(0, 0, 1);
  one.key_counts = all.key_counts.narrow(0, 0, 1);
  one.query_starts = at::tensor({0, 30}, at::kInt).to(kernel.device);
  CHECK(at::equal(run(one), beside.narrow(0, 0, 30)));
  // Of many rows, whose tiles clusters take in pairs, the first ones.
  Operands many = one;
  const std::int64_t copies = small ? 2 : 120;
  many.q = at::cat(std::vector<Tensor>(static_cast<std::size_t>(copies), one.q));
  many.queries = {30 * copies};
  many.query_starts = at::tensor({0, static_cast<int>(30 * copies)}, at::kInt).to(kernel.device);
  const Tensor out = run(many);
  for (std::int64_t i = 0; i < copies; ++i)
    CHECK(at::equal(out.narrow(0, 30 * i, 30), beside.narrow(0, 0, 30)));
}

}  // namespace diptych::testing
