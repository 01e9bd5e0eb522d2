// Bias, log-sum-exp, and parts of attention that become one.
#include <cmath>
#include <limits>

#include <doctest/doctest.h>

#include "lib/attention/backends.h"
#include "lib/attention/merge.h"
#include "tests/attention/inputs.h"
#include "tests/support/folder.h"

namespace diptych {
namespace {

using attention_cases::Case;
using attention_cases::Inputs;
using attention_cases::make_inputs;
using attention_cases::relative_max;
using attention_cases::relative_norm;
using test::message_of;

const Case kUneven = {"", 4, 2, 16, {5, 3}, {9, 7}, 12};
const Case kEven = {"", 6, 6, 8, {4, 4}, {10, 10}, 10};

// What one call gives, by the formula, in double.
struct Expected {
  Tensor out, log_sum_exp;
};
Expected expected(const Inputs& inputs, bool causal, const Tensor& bias) {
  std::vector<Tensor> outs, sums;
  std::int64_t first = 0;
  const std::int64_t group = inputs.q.size(1) / inputs.k.size(2);
  for (std::int64_t s = 0; s < inputs.lengths.samples(); ++s) {
    const auto i = static_cast<std::size_t>(s);
    const std::int64_t queries = inputs.lengths.q[i], keys = inputs.lengths.k[i];
    const auto keys_of = [&](const Tensor& all) {  // [heads, keys, head_dim]
      return all[s]
          .narrow(0, 0, keys)
          .to(at::kDouble)
          .repeat_interleave(group, 1)
          .permute({1, 0, 2});
    };
    const Tensor q = inputs.q.narrow(0, first, queries).to(at::kDouble).permute({1, 0, 2});
    Tensor logits = at::matmul(q, keys_of(inputs.k).transpose(1, 2)) * inputs.call(causal).scale;
    if (bias.defined() && bias.dim() == 1) logits.select(2, keys - 1) += bias[s];
    if (bias.defined() && bias.dim() == 3) logits += bias.narrow(1, 0, queries).narrow(2, 0, keys);
    if (causal) {
      const Tensor hidden = at::ones({queries, keys}, at::kBool).triu(keys - queries + 1);
      logits.masked_fill_(hidden, -std::numeric_limits<double>::infinity());
    }
    outs.push_back(at::matmul(at::softmax(logits, -1), keys_of(inputs.v)).permute({1, 0, 2}));
    sums.push_back(at::logsumexp(logits, -1).t());
    first += queries;
  }
  return {at::cat(outs), at::cat(sums)};
}

std::vector<Tensor> biases(const Inputs& inputs) {
  const AttentionLengths& l = inputs.lengths;
  const Tensor last_key = at::rand({l.samples()}).add_(4);
  // A view of a larger table, as of relative positions.
  const Tensor per_query = at::randn({l.capacity + 3, inputs.q.size(1), l.max_q})
                               .permute({1, 2, 0})
                               .narrow(2, 2, l.capacity);
  return {last_key, per_query};
}

// With a bias of three dimensions, or of one: of the last keys.
AttentionCall with(AttentionCall call, const Tensor& bias, const Tensor& log_sum_exp = {}) {
  (bias.defined() && bias.dim() == 1 ? call.last_key_bias : call.bias) = bias;
  call.log_sum_exp = log_sum_exp;
  return call;
}

Tensor empty_sums(const Inputs& inputs) {
  return at::full({inputs.q.size(0), inputs.q.size(1)}, -77.0, at::TensorOptions(at::kFloat));
}

struct Part {
  Tensor out, log_sum_exp;
};
// By the reference, over keys [begin, begin + lengths[i]) of each sample.
Part attend_part(const Inputs& whole, std::int64_t begin, std::vector<std::int64_t> lengths) {
  const std::int64_t capacity = whole.k.size(1) - begin;
  const Inputs part = {
      whole.q, whole.k.narrow(1, begin, capacity), whole.v.narrow(1, begin, capacity),
      AttentionLengths::make(whole.lengths.q, std::move(lengths), capacity, at::kCPU)};
  const Tensor sums = empty_sums(whole);
  return {make_attention("math", at::kCPU)->forward(with(part.call(false), {}, sums)), sums};
}

}  // namespace

TEST_CASE("a bias is added to the logits, of the last key or of each head, query and key") {
  for (const Case& shape : {kUneven, kEven}) {
    const Inputs plain = make_inputs(shape, 1e4);
    for (const Tensor& bias : biases(plain)) {
      for (const bool causal : {false, true}) {
        const Expected wanted = expected(plain, causal, bias);
        CHECK(relative_norm(expected(plain, causal, {}).out, wanted.out) > 0.1);
        for (const char* name : {"math", "sdpa", "auto"}) {
          CAPTURE(name);
          CAPTURE(causal);
          CAPTURE(bias.dim());
          const auto backend = make_attention(name, at::kCPU);
          CHECK(backend->takes_last_key_bias({at::kCPU, at::kBFloat16, plain.q.size(2)}));
          const Tensor got = backend->forward(with(plain.call(causal), bias));
          CHECK(relative_max(got, wanted.out) <= 1e-5);
          const Inputs half = plain.to(at::kCPU, at::kBFloat16);
          const Tensor rounded = backend->forward(with(half.call(causal), bias));
          CHECK((rounded.scalar_type() == at::kBFloat16));
          CHECK(relative_norm(rounded, wanted.out) <= 0.02);
        }
      }
    }
  }
}

TEST_CASE("log-sum-exp is that of the logits, bias and causal mask included") {
  const auto math = make_attention("math", at::kCPU);
  const Inputs inputs = make_inputs(kUneven, 1e4);
  std::vector<Tensor> all = biases(inputs);
  all.emplace_back();
  for (const Tensor& bias : all) {
    for (const bool causal : {false, true}) {
      const Tensor sums = empty_sums(inputs);
      const Tensor out = math->forward(with(inputs.call(causal), bias, sums));
      CHECK(relative_max(sums, expected(inputs, causal, bias).log_sum_exp) <= 1e-5);
      CHECK(at::equal(out, math->forward(with(inputs.call(causal), bias))));
    }
  }
  // Many queries go in blocks.
  const Inputs many = make_inputs({"", 4, 4, 8, {66}, {300000}, 300000}, 0);
  const Tensor sums = empty_sums(many);
  math->forward(with(many.call(false), {}, sums));
  const Inputs last = {many.q.narrow(0, 65, 1), many.k, many.v,
                       AttentionLengths::make({1}, {300000}, 300000, at::kCPU)};
  const Tensor last_sums = empty_sums(last);
  math->forward(with(last.call(false), {}, last_sums));
  CHECK(relative_max(sums.narrow(0, 65, 1), last_sums.to(at::kDouble)) <= 1e-5);
}

TEST_CASE("attention over all keys is the merge of two halves") {
  const Inputs inputs = make_inputs(kUneven, 1e4);
  const Part whole = attend_part(inputs, 0, {9, 7});
  const Part first = attend_part(inputs, 0, {4, 4}), second = attend_part(inputs, 4, {5, 3});
  CHECK(relative_norm(first.out, whole.out.to(at::kDouble)) > 0.1);
  const PartialAttention merged =
      merge_attention(first.out, first.log_sum_exp, second.out, second.log_sum_exp);
  CHECK(relative_max(merged.out, whole.out.to(at::kDouble)) <= 1e-5);
  CHECK(relative_max(merged.log_sum_exp, whole.log_sum_exp.to(at::kDouble)) <= 1e-6);
  // Rounded once.
  const PartialAttention rounded =
      merge_attention(first.out.to(at::kBFloat16), first.log_sum_exp, second.out.to(at::kBFloat16),
                      second.log_sum_exp);
  CHECK((rounded.out.scalar_type() == at::kBFloat16));
  CHECK(relative_norm(rounded.out, whole.out.to(at::kDouble)) <= 0.01);
}

TEST_CASE("a merge with a part of no keys, and of sums that exp would overflow") {
  const Tensor out = at::tensor({1.0F, 2.0F}).view({1, 1, 2}), other = at::zeros({1, 1, 2});
  const Tensor sum = at::full({1, 1}, 500.0, at::TensorOptions(at::kFloat));
  const Tensor none = at::full({1, 1}, -std::numeric_limits<float>::infinity());
  for (const PartialAttention& merged :
       {merge_attention(out, sum, other, none), merge_attention(other, none, out, sum)}) {
    CHECK(at::equal(merged.out, out));
    CHECK(at::equal(merged.log_sum_exp, sum));
  }
  const PartialAttention twice = merge_attention(out, sum, other, sum);
  CHECK(at::allclose(twice.out, out / 2));
  CHECK(twice.log_sum_exp.item<float>() == doctest::Approx(500 + std::log(2.0)));
  CHECK_THROWS_AS(merge_attention(out, sum, other.narrow(2, 0, 1), sum), c10::Error);
  CHECK_THROWS_AS(merge_attention(out, sum.to(at::kDouble), other, sum), c10::Error);
}

TEST_CASE("a key that is there many times is one key with a bias of the log of their number") {
  constexpr std::int64_t kCount = 509;
  const Inputs few = make_inputs({"", 4, 2, 16, {3}, {4}, 4}, 0);
  const auto repeated = [](const Tensor& keys) {
    return at::cat({keys, keys.narrow(1, 3, 1).expand({1, kCount - 1, 2, 16})}, 1);
  };
  const Inputs many = {few.q, repeated(few.k), repeated(few.v),
                       AttentionLengths::make({3}, {3 + kCount}, 3 + kCount, at::kCPU)};
  const Tensor bias = at::full({1}, std::log(static_cast<double>(kCount)), at::kFloat);
  for (const char* name : {"math", "sdpa"}) {
    const auto backend = make_attention(name, at::kCPU);
    const Tensor wanted = backend->forward(many.call(false)).to(at::kDouble);
    CHECK(relative_max(backend->forward(with(few.call(false), bias)), wanted) <= 1e-5);
    CHECK(relative_max(backend->forward(few.call(false)), wanted) > 0.01);
  }
}

TEST_CASE("backends without bias or log-sum-exp say so, and auto takes another") {
  const Inputs inputs = make_inputs(kUneven, 0);
  const AttentionCall biased = with(inputs.call(false), at::zeros({2}));
  const AttentionCall summed = with(inputs.call(false), {}, empty_sums(inputs));
  CHECK(message_of([&] { make_attention("sdpa", at::kCPU)->forward(summed); }) ==
        "attention backend sdpa: gives no log-sum-exp");
  CHECK(extras_unsupported(biased).value_or("served") == "takes no bias");
  CHECK(extras_unsupported(summed).value_or("served") == "gives no log-sum-exp");
  CHECK(extras_unsupported(inputs.call(false)).value_or("served") == "served");
  const auto automatic = make_attention("auto", at::kCPU);
  automatic->forward(inputs.call(false));
  automatic->forward(biased);
  CHECK(automatic->served_by() == "sdpa");
  automatic->forward(summed);  // of the same plan
  CHECK(automatic->served_by() == "sdpa, math");
}

TEST_CASE("a bias or a log-sum-exp of another shape is a programmer's error") {
  const Inputs inputs = make_inputs(kUneven, 0);
  const auto math = make_attention("math", at::kCPU);
  const auto wrong = [&](const Tensor& bias, const Tensor& sums = {}) {
    CHECK_THROWS_AS(math->forward(with(inputs.call(false), bias, sums)), c10::Error);
  };
  wrong(at::zeros({1}));
  wrong(at::zeros({12}));
  wrong(at::zeros({2, 12}));
  wrong(at::zeros({2, 5, 12}));
  wrong(at::zeros({4, 3, 12}));
  wrong(at::zeros({2}, at::kDouble));
  wrong(at::zeros({4}).slice(0, 0, std::nullopt, 2));
  AttentionCall both = with(inputs.call(false), at::zeros({2}));
  both.bias = at::zeros({4, 5, 12});
  CHECK_THROWS_AS(math->forward(both), c10::Error);
  wrong({}, at::zeros({4, 8}));
  wrong({}, at::zeros({8, 4}, at::kBFloat16));
}

}  // namespace diptych
