#include "tests/attention/cases.h"

#include <doctest/doctest.h>

#include "lib/attention/backends.h"
#include "lib/base/error.h"
#include "tests/attention/inputs.h"

namespace diptych::attention_cases {
namespace {

const std::vector<Case>& table() {
  static const std::vector<Case> cases = {
      {"GQA 28/4, empty context", 28, 4, 128, {33}, {33}, 33},
      {"GQA 28/4, empty context in a larger buffer", 28, 4, 128, {18}, {18}, 40},
      {"equal heads", 8, 8, 64, {20, 20}, {45, 31}, 64},
      {"equal heads, equal lengths", 6, 6, 64, {20, 20}, {45, 45}, 64},
      {"tiny GQA 4/2, uneven", 4, 2, 16, {5, 7, 3}, {9, 7, 20}, 24},
      {"one query after a cache of 37", 28, 4, 128, {1}, {38}, 64},
      {"three queries after a cache of 37", 28, 4, 128, {3}, {40}, 64},
      {"one query each, uneven caches", 28, 4, 128, {1, 1, 1}, {38, 1, 20}, 64},
      {"three rows, uneven contexts, one empty", 28, 4, 128, {17, 17, 17}, {81, 17, 60}, 96},
      {"uneven queries", 28, 4, 128, {66, 2, 2, 30}, {70, 40, 9, 30}, 80},
      {"SigLIP, 16 heads of 72", 16, 16, 72, {130}, {130}, 130},
      {"two markers each", 28, 4, 128, {2, 2}, {300, 41}, 320},
      {"up to sixteen queries", 8, 2, 64, {16, 1, 5}, {70, 33, 5}, 80},
      {"over one kernel tile", 4, 2, 64, {130, 130}, {300, 131}, 320},
  };
  return cases;
}

std::vector<std::string> usable_backends(at::Device device) {
  std::vector<std::string> names = {"auto"};
  for (const AttentionInfo& info : list_attention(device)) {
    if (!info.unavailable) names.push_back(info.name);
  }
  if (!splitkv_unavailable(device)) names.emplace_back(kSplitKv);
  names.emplace_back(kMathInOrder);
  return names;
}

bool should_serve(const std::string& backend, const AttentionCall& call) {
  if (backend == kSplitKv) {
    const std::int64_t queries = call.lengths->max_q, lanes = call.q.size(2) / 8;  // of bfloat16
    return queries <= 16 && (lanes & (lanes - 1)) == 0;
  }
  const bool half = call.q.scalar_type() == at::kBFloat16;
  if (backend == kHopper) return half && call.q.size(2) == 128;
  return (backend != "flash" && backend != "cudnn") || half;
}

// float32: 1e-5 relative. bfloat16: at most twice the error that float32 arithmetic on the rounded
// inputs makes against the unrounded reference; single elements scatter more, so four times there.
void check_result(const AttentionBackend& backend, const AttentionBackend& math,
                  const AttentionCall& call, const Tensor& wanted) {
  const Tensor got = backend.forward(call);
  REQUIRE(got.sizes() == call.q.sizes());
  REQUIRE((got.scalar_type() == call.q.scalar_type()));  // doctest cannot print it
  if (got.scalar_type() == at::kFloat) {
    CHECK(relative_max(got, wanted) <= 1e-5);
    return;
  }
  const Tensor plain = math.forward(call);
  CHECK(relative_norm(plain, wanted) <= 0.02);
  CHECK(relative_norm(got, wanted) <= 2 * relative_norm(plain, wanted));
  CHECK(relative_max(got, wanted) <= 4 * relative_max(plain, wanted));
}

void check_backend(const std::string& name, at::Device device, const AttentionCall& call,
                   const Tensor& wanted) {
  INFO("backend: ", name);
  const auto backend = make_attention(name, device);
  const bool serves = should_serve(name, call);
  const std::optional<std::string> reason = backend->unsupported(call);
  INFO("reason: ", reason.value_or("none"));
  CHECK(reason.has_value() == !serves);
  if (!serves) {
    CHECK_THROWS_AS(backend->forward(call), InputError);
    return;
  }
  const std::optional<std::string> late = backend->prepare(call);
  INFO("after preparing: ", late.value_or("none"));
  CHECK_FALSE(late.has_value());
  if (!late) check_result(*backend, *make_attention("math", device), call, wanted);
}

}  // namespace

void check_table(at::Device device) {
  at::zeros({16}, at::kFloat).exp_();  // set_up_vector_functions() (lib/runtime/threads.h)
  for (const Case& shape : table()) {
    const Inputs plain = make_inputs(shape, 1e4);
    for (const bool causal : {false, true}) {
      const Tensor wanted = reference(plain, causal);
      for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
        const Inputs whole = plain.to(device, dtype);
        const Inputs sliced = whole.sliced();
        for (const Inputs* inputs : {&whole, &sliced}) {
          for (const std::string& name : usable_backends(device)) {
            INFO("case: ", shape.name, ", causal ", causal, ", ", c10::toString(dtype), ", sliced ",
                 inputs == &sliced);
            check_backend(name, device, inputs->call(causal), wanted);
          }
        }
      }
    }
  }
}

void check_rows_behind_keys_unread(at::Device device) {
  const Case shape = {"", 28, 4, 128, {6, 6}, {40, 6}, 64};
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const Inputs clean = make_inputs(shape, 0).to(device, at::kBFloat16);
  for (const std::string& name : usable_backends(device)) {
    // Some read whole tiles and weigh what lies behind the keys with zero.
    const double behind = name == "cudnn" || name == kHopper ? 1e4 : nan;
    const Inputs poisoned = make_inputs(shape, behind).to(device, at::kBFloat16);
    for (const bool causal : {false, true}) {
      INFO("backend: ", name, ", causal ", causal);
      if (!should_serve(name, poisoned.call(causal))) continue;
      const auto backend = make_attention(name, device);
      const Tensor got = backend->forward(poisoned.call(causal));
      CHECK(got.isfinite().all().item<bool>());
      CHECK(at::equal(got, backend->forward(clean.call(causal))));
    }
  }
}

void check_isolation(at::Device device) {
  const Case shape = {"", 28, 4, 128, {9, 9}, {40, 25}, 64};
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    const Inputs before = make_inputs(shape, 0).to(device, dtype);
    Inputs after = before;
    after.q = before.q.clone();
    after.k = before.k.clone();
    after.v = before.v.clone();
    after.q.narrow(0, 9, 9).mul_(-1.5);
    after.k.select(0, 1).narrow(0, 0, 25).add_(0.25);
    after.v.select(0, 1).narrow(0, 0, 25).mul_(3);
    for (const std::string& name : usable_backends(device)) {
      for (const bool causal : {false, true}) {
        if (!should_serve(name, before.call(causal))) continue;
        INFO("backend: ", name, ", causal ", causal, ", ", c10::toString(dtype));
        const auto backend = make_attention(name, device);
        const Tensor first = backend->forward(before.call(causal));
        const Tensor second = backend->forward(after.call(causal));
        CHECK(at::equal(first.narrow(0, 0, 9), second.narrow(0, 0, 9)));
        CHECK_FALSE(at::equal(first.narrow(0, 9, 9), second.narrow(0, 9, 9)));
      }
    }
  }
}

void check_alone_equals_packed(at::Device device) {
  const Case shape = {"", 28, 4, 128, {9, 9, 9}, {40, 40, 40}, 64};
  const Inputs packed = make_inputs(shape, 0).to(device, at::kFloat);
  const Inputs alone = {packed.q.narrow(0, 9, 9), packed.k.narrow(0, 1, 1),
                        packed.v.narrow(0, 1, 1), AttentionLengths::make({9}, {40}, 64, device)};
  for (const std::string& name : usable_backends(device)) {
    for (const bool causal : {false, true}) {
      INFO("backend: ", name, ", causal ", causal);
      const auto backend = make_attention(name, device);
      CHECK(at::equal(backend->forward(packed.call(causal)).narrow(0, 9, 9),
                      backend->forward(alone.call(causal))));
    }
  }
}

void check_order(at::Device device) {
  constexpr std::int64_t kKeys = 512;
  const auto options = at::TensorOptions(at::kFloat).device(device);
  const Tensor q = at::zeros({2, 1, 4}, options), k = at::zeros({1, kKeys, 1, 4}, options);
  // Beside 1 a key's 2^-24 is lost, but 256 of them that are summed apart are not.
  const Tensor v = at::full({1, kKeys, 1, 4}, 0x1p-24, options);
  v.select(1, 0).fill_(1);
  const auto lengths = AttentionLengths::make({2}, {kKeys}, kKeys, device);
  AttentionCall call = {.q = q, .k = k, .v = v, .lengths = &lengths, .scale = 1};
  const Tensor got = make_attention(kMathInOrder, device)->forward(call);
  CHECK(at::equal(got, at::full({2, 1, 4}, (1 + 0x1p-16) / kKeys, options)));
}

}  // namespace diptych::attention_cases
