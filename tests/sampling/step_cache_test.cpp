// Taylor values: modeling/cache_utils/taylorseer.py of ByteDance-Seed/Bagel @056b5fd, run with
// torch 2.11 on the CPU over the same features.
#include "lib/sampling/step_cache/step_cache.h"

#include <doctest/doctest.h>

#include "lib/base/error.h"

namespace diptych {
namespace {

constexpr StepCacheCoefficients kIdentity = {0, 0, 0, 1, 0};

// What the transformer would give in a call: a cubic, a jagged line and a fading curve.
Tensor features(std::int64_t call, at::ScalarType dtype) {
  const auto n = static_cast<double>(call);
  const auto jagged = static_cast<double>(37 * call % 11);
  return at::tensor({n * n * n / 64 - n, jagged / 8, 5 / (n + 1)}, at::kDouble).to(dtype);
}

StepCacheConfig taylorseer() {
  StepCacheConfig config;
  config.mode = StepCacheMode::taylorseer;
  return config;
}

StepCacheConfig teacache(double threshold) {
  StepCacheConfig config;
  config.mode = StepCacheMode::teacache;
  config.threshold = threshold;
  config.coefficients = kIdentity;
  return config;
}

Tensor level(double value) {
  return at::full({2, 3}, value, at::kFloat);
}

std::string refusal(const StepCacheConfig& config) {
  try {
    config.check();
  } catch (const InputError& error) {
    return error.what();
  }
  return "nothing was thrown";
}

}  // namespace

TEST_CASE("TaylorSeer computes calls 0 to 4, then every third") {
  TaylorSeer series;
  std::vector<std::int64_t> computed;
  for (std::int64_t call = 0; call < 20; ++call) {
    if (!series.begin_call()) continue;
    series.store(features(call, at::kFloat));
    computed.push_back(call);
  }
  CHECK(computed == std::vector<std::int64_t>{0, 1, 2, 3, 4, 7, 10, 13, 16, 19});
}

TEST_CASE("TaylorSeer predicts what the official code predicts") {
  struct Prediction {
    std::int64_t call;
    std::vector<float> wide, narrow;  // float32, bfloat16
  };
  const std::vector<Prediction> predictions = {
      {5, {-3.421875F, 1.125F, 0.75F}, {-3.421875F, 1.125F, 0.75F}},
      {6, {-3.84375F, 1.625F, 0.5F}, {-3.84375F, 1.625F, 0.5F}},
      {8, {-1.04166663F, 0.715277791F, 0.520833313F}, {-1.0390625F, 0.71484375F, 0.51953125F}},
      {9, {-0.151041687F, 0.527777791F, 0.458333343F}, {-0.15234375F, 0.5234375F, 0.458984375F}},
      {11, {8.39525509F, 0.925154328F, 0.408038706F}, {8.375F, 0.92578125F, 0.408203125F}},
      {12, {11.9432869F, 1.02623451F, 0.377946168F}, {12, 1.0234375F, 0.37890625F}},
      {14, {27.0464897F, 1.04095936F, 0.327942103F}, {27.125F, 1.0390625F, 0.328125F}},
      {15, {33.7907028F, 1.07201648F, 0.302268744F}, {34, 1.078125F, 0.302734375F}},
      {17, {57.5156517F, 1.16671383F, 0.274829954F}, {57.5F, 1.1640625F, 0.275390625F}},
      {18, {68.344574F, 1.20984232F, 0.258653462F}, {68.5F, 1.2109375F, 0.259765625F}},
      {20, {102.328125F, 1.291664F, 0.236258358F}, {102, 1.2890625F, 0.236328125F}},
      {21, {118.078033F, 1.33316576F, 0.224125504F}, {117.5F, 1.3359375F, 0.22265625F}},
      {23, {164.015625F, -0.502300322F, 0.207119197F}, {164, -0.5F, 0.208007812F}},
  };
  for (const auto dtype : {at::kFloat, at::kBFloat16}) {
    TaylorSeer series;
    auto expected = predictions.begin();
    for (std::int64_t call = 0; call < 24; ++call) {
      if (series.begin_call()) {
        series.store(features(call, dtype));
        continue;
      }
      CAPTURE(call);
      REQUIRE(expected->call == call);
      const Tensor found = series.predict();
      CHECK((found.scalar_type() == dtype));
      const Tensor wanted = at::tensor(dtype == at::kFloat ? expected->wide : expected->narrow);
      CHECK(found.to(at::kFloat).equal(wanted));  // to the last bit
      ++expected;
    }
    CHECK(expected == predictions.end());
  }
}

TEST_CASE("differences and series agree with a loop written out") {
  // D_0 = F, D_(i+1) = (D_i - D_i before) / distance; the prediction sums D_i x^i / i!.
  TaylorSeer series;
  std::vector<double> factors;
  std::int64_t last = 0;
  for (std::int64_t call = 0; call < 30; ++call) {
    const double value = features(call, at::kDouble)[0].item<double>();
    if (series.begin_call()) {
      series.store(features(call, at::kDouble));
      std::vector<double> next = {value};
      for (std::size_t i = 0; call >= 4 && i < factors.size() && i < 6; ++i) {
        next.push_back((next[i] - factors[i]) / static_cast<double>(call - last));
      }
      factors = next;
      last = call;
      continue;
    }
    double expected = 0, term = 1;
    for (std::size_t i = 0; i < factors.size(); ++i) {
      expected += factors[i] * term;
      term *= static_cast<double>(call - last) / static_cast<double>(i + 1);
    }
    CHECK(series.predict()[0].item<double>() == doctest::Approx(expected).epsilon(1e-12));
  }
  CHECK(factors.size() == 7);
}

TEST_CASE("TeaCache's decisions, step by step") {
  // Relative changes 1/10, 1/11, 1/12, ... with an estimate that is the change itself.
  TeaCache cache(0.2, kIdentity, 10);
  const std::vector<double> inputs = {10, 11, 12, 13, 14, 15, 16, 16, 16.1, 16.2};
  std::vector<bool> computed;
  for (std::size_t step = 0; step < inputs.size(); ++step) {
    computed.push_back(cache.begin_step(level(inputs[step]), static_cast<std::int64_t>(step), 1));
  }
  // .1, .191, .274 | .077, .148, .215 | 0, .006, and the last step.
  CHECK(computed ==
        std::vector<bool>{true, false, false, true, false, false, true, false, false, true});
}

TEST_CASE("TeaCache's limits: all steps, or only the first and the last") {
  const auto computed = [](double threshold) {
    TeaCache cache(threshold, kIdentity, 12);
    int count = 0;
    for (std::int64_t step = 0; step < 12; ++step) {
      count += cache.begin_step(level(10 + static_cast<double>(step)), step, 2) ? 1 : 0;
    }
    return count;
  };
  CHECK(computed(1e-9) == 12);
  CHECK(computed(1e9) == 2);
  TeaCache one(1e9, kIdentity, 1);  // a picture of one update
  CHECK(one.begin_step(level(1), 0, 1));
}

TEST_CASE("TeaCache computes what an estimate cannot tell") {
  const auto second_step = [](const StepCacheCoefficients& coefficients, double from, double to) {
    TeaCache cache(1e9, coefficients, 4);
    cache.begin_step(level(from), 0, 1);
    return cache.begin_step(level(to), 1, 1);
  };
  CHECK_FALSE(second_step(kIdentity, 10, 11));
  CHECK(second_step({0, 0, 0, 1, -0.2}, 10, 11));  // negative
  CHECK(second_step(kIdentity, 10, NAN));
  CHECK(second_step(kIdentity, 0, 0));
  CHECK(second_step(kIdentity, 0, 1));  // infinite
}

TEST_CASE("TeaCache adds the last residual to the input") {
  TeaCache cache(1e9, kIdentity, 4);
  CHECK(cache.begin_step(level(1), 0, 2));
  cache.store(0, level(1), level(5));
  cache.store(1, level(1), level(-2));
  CHECK_FALSE(cache.begin_step(level(1.5), 1, 2));
  CHECK(cache.predict(0, level(1.5)).equal(level(5.5)));
  CHECK(cache.predict(1, level(1.5)).equal(level(-1.5)));
  // An output with a leading dimension: the input is repeated over it.
  CHECK(cache.begin_step(level(2), 3, 1));
  cache.store(0, level(2), at::stack({level(3), level(7)}));
  CHECK(cache.predict(0, level(2.5)).equal(at::stack({level(3.5), level(7.5)})));
  CHECK_THROWS_AS(cache.predict(1, level(2)), std::exception);  // not of the last computed step
}

TEST_CASE("TeaCache where guidance sets in and ends") {
  TeaCache cache(1e9, kIdentity, 9);
  const std::vector<std::int64_t> counts = {1, 1, 3, 3, 1, 2, 3, 3, 1};
  std::vector<bool> computed;
  for (std::size_t step = 0; step < counts.size(); ++step) {
    computed.push_back(cache.begin_step(level(1), static_cast<std::int64_t>(step), counts[step]));
  }
  // Step 2 has contexts without a residual. Those that pause keep theirs, as old as context 0's.
  CHECK(computed == std::vector<bool>{true, false, true, false, false, false, false, false, true});
}

TEST_CASE("StepCache: branches that set in later have their own TaylorSeer calls") {
  StepCache cache(taylorseer(), 2, 20);
  std::vector<std::vector<bool>> computed;
  for (std::int64_t step = 0; step < 14; ++step) {
    const std::int64_t count = step < 2 || step > 11 ? 1 : 2;
    computed.push_back(cache.begin_step(level(0), step, count));
    for (std::int64_t context = 0; context < count; ++context) {
      const bool compute = computed.back()[static_cast<std::size_t>(context)];
      if (compute) cache.store(context, level(0), level(1));
      if (!compute) CHECK(cache.predict(context, level(0)).equal(level(1)));
    }
  }
  using Both = std::vector<bool>;
  CHECK((computed == std::vector<Both>{{true},
                                       {true},
                                       {true, true},
                                       {true, true},
                                       {true, true},
                                       {false, true},
                                       {false, true},
                                       {true, false},
                                       {false, false},
                                       {false, true},
                                       {true, false},
                                       {false, false},
                                       {false},
                                       {true}}));
}

TEST_CASE("StepCache: a picture begins anew") {
  for (const StepCacheConfig& config : {taylorseer(), teacache(1e9)}) {
    StepCache cache(config, 1, 8);
    const auto run = [&] {
      std::vector<bool> computed;
      for (std::int64_t step = 0; step < 8; ++step) {
        computed.push_back(cache.begin_step(level(2), step, 1).front());
        if (computed.back()) cache.store(0, level(2), level(3));
      }
      return computed;
    };
    const std::vector<bool> first = run();
    // What a step would be served from is another picture's.
    CHECK_THROWS_WITH_AS(run(), doctest::Contains("begin_picture()"), c10::Error);
    cache.begin_picture();
    CHECK(run() == first);
  }
}

TEST_CASE("values out of range are refused by name") {
  CHECK(refusal(taylorseer()) == "nothing was thrown");
  CHECK(refusal(teacache(0.1)) == "nothing was thrown");
  CHECK(refusal(teacache(0)) == "teacache: threshold: found 0, expected a positive number");
  CHECK(refusal(teacache(NAN)) == "teacache: threshold: found nan, expected a positive number");
  StepCacheConfig config = teacache(0.1);
  config.coefficients = {};
  CHECK(refusal(config) ==
        "teacache: coefficients: found [0, 0, 0, 0, 0], expected 5 finite numbers, not all 0");
  CHECK_THROWS_AS(StepCache(config, 1, 4), InputError);
}

}  // namespace diptych
