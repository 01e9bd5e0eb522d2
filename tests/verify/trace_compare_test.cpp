#include "lib/verify/trace_compare.h"

#include <cmath>
#include <limits>

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include "tests/verify/goldens.h"

namespace {

using namespace diptych;
using nlohmann::json;

NamedTensors small_trace() {
  return {{"kv.cond.len", at::tensor({22}, at::kLong)},
          {"step000.v_cond", at::ones({2, 3})},
          {"step000.latent", at::full({2, 3}, 2.0)},
          {"step001.latent", at::full({2, 3}, 4.0)},
          {"image.uint8", at::full({2, 2, 3}, 100, at::kByte)}};
}

constexpr std::string_view kStages[] = {"prefill", "kv", "step", "vae", "image"};
constexpr std::string_view kWithin[] = {"v_cond", "latent"};
constexpr TraceNames kNames = {kStages, kWithin, {}, {}};

TraceComparison compare(const NamedTensors& actual, const NamedTensors& expected,
                        const Tolerances& tolerances) {
  return compare_traces(actual, expected, tolerances, kNames);
}

TEST_CASE("equal traces pass; the list is in order of computation") {
  const auto result = compare(small_trace(), small_trace(), Tolerances::uniform(0));
  CHECK(result.pass());
  CHECK(result.failures() == 0);
  CHECK(result.first_divergence() == nullptr);
  CHECK(result.smallest_cosine() == doctest::Approx(1));
  std::vector<std::string> names;
  for (const auto& tensor : result.tensors) names.push_back(tensor.name);
  CHECK(names == std::vector<std::string>{"kv.cond.len", "step000.v_cond", "step000.latent",
                                          "step001.latent", "image.uint8"});
}

TEST_CASE("the first that leaves its tolerance and the worst are named") {
  auto actual = small_trace();
  actual["step000.v_cond"] = actual["step000.v_cond"] + 1e-4;
  actual["step000.latent"] = actual["step000.latent"] + 0.02;
  actual["step001.latent"] = actual["step001.latent"] + 0.5;
  const auto result = compare(actual, small_trace(), Tolerances::uniform(1e-2));
  CHECK_FALSE(result.pass());
  CHECK(result.failures() == 2);
  CHECK(result.first_divergence()->name == "step000.latent");
  CHECK(result.worst()->name == "step001.latent");
  CHECK(result.worst()->difference.max_abs == doctest::Approx(0.5));
  CHECK(result.worst()->difference.relative == doctest::Approx(0.125));
  CHECK(result.tensors[1].pass);
  CHECK(describe(*result.worst()) ==
        "step001.latent: max abs 0.5, mean abs 0.5, relative 0.125, cosine 1, tolerance 0.01");
}

TEST_CASE("a relative norm takes the place of the largest difference") {
  auto expected = small_trace();
  expected["step000.latent"] = at::tensor({3.0F, 4.0F});
  auto actual = expected;
  actual["step000.latent"] = at::tensor({3.0F, 4.5F});  // 0.5 of a norm of 5
  auto tolerances = Tolerances::uniform(0);
  tolerances.set_relative_norm({"step*.latent", 0.11});
  const auto passed = compare(actual, expected, tolerances);
  CHECK(passed.pass());
  CHECK(passed.worst()->difference.relative_norm == doctest::Approx(0.1));
  tolerances.set_relative_norm({"step000.*", 0.09});
  const auto failed = compare(actual, expected, tolerances);
  CHECK(failed.first_divergence()->name == "step000.latent");
  CHECK(describe(*failed.worst()).ends_with("tolerance 0.09 for the relative norm 0.1"));
  // Whole numbers stay exact whatever the glob says.
  tolerances.set_relative_norm({"*", 1.0});
  actual["kv.cond.len"] = actual["kv.cond.len"] + 1;
  CHECK(compare(actual, expected, tolerances).first_divergence()->name == "kv.cond.len");
}

TEST_CASE("worst is measured against each tensor's own tolerance") {
  auto actual = small_trace();
  actual["step000.latent"] = actual["step000.latent"] + 0.5;
  actual["step001.latent"] = actual["step001.latent"] + 0.125;
  auto tolerances = Tolerances::uniform(0.0625);
  tolerances.set("step000.latent", 1.0);
  const auto result = compare(actual, small_trace(), tolerances);
  CHECK(result.first_divergence()->name == "step001.latent");
  CHECK(result.worst()->name == "step001.latent");
}

TEST_CASE("NaN never passes") {
  const Tensor broken = at::full({2, 3}, std::numeric_limits<double>::quiet_NaN());
  auto with_nan = small_trace();
  with_nan["step000.v_cond"] = broken;
  const auto everything = Tolerances::uniform(1e30);
  for (const auto& [actual, expected] :
       {std::pair{with_nan, small_trace()}, {small_trace(), with_nan}, {with_nan, with_nan}}) {
    const auto result = compare(actual, expected, everything);
    CHECK(result.failures() == 1);
    CHECK(result.first_divergence()->name == "step000.v_cond");
    CHECK(result.worst()->name == "step000.v_cond");
    CHECK(std::isnan(result.smallest_cosine()));
    CHECK(to_json(result)["tensors"][1]["max_abs"].is_null());
  }
}

TEST_CASE("whole numbers must agree exactly, whatever the tolerance") {
  auto actual = small_trace();
  actual["kv.cond.len"] = at::tensor({23}, at::kLong);
  CHECK(compare(actual, small_trace(), Tolerances::uniform(10)).first_divergence()->name ==
        "kv.cond.len");
}

TEST_CASE("missing tensors, other shapes and other kinds of number fail") {
  auto actual = small_trace();
  actual.erase("kv.cond.len");
  actual["step000.v_cond"] = at::ones({3, 2});
  actual["step000.latent"] = at::ones({2, 3}, at::kLong);
  actual["step001.latent"] = actual["step001.latent"].to(at::kBFloat16);  // the width may differ
  actual["extra"] = at::ones(1);
  const auto result = compare(actual, small_trace(), Tolerances::uniform(100));
  CHECK(result.failures() == 3);
  CHECK(describe(result.tensors[0]) == "kv.cond.len: missing");
  CHECK(describe(result.tensors[1]) == "step000.v_cond: shape [3,2], expected [2,3]");
  CHECK(result.tensors[2].problem == "Long, expected Float");
  CHECK(result.tensors[3].pass);
  CHECK(result.unexpected == std::vector<std::string>{"extra"});
  CHECK_FALSE(result.worst()->problem.empty());
}

TEST_CASE("a picture judged by its mean") {
  const auto tolerances =
      Tolerances::from_case(test::own_case("12_t2i_square_bf16"), kNames);  // mean 0.67
  const auto verdict = [&](int levels, std::int64_t samples) {
    NamedTensors actual = small_trace();
    Tensor flat = actual["image.uint8"].flatten();  // 12 samples
    flat.narrow(0, 0, samples).add_(levels);
    actual["image.uint8"] = flat.reshape({2, 2, 3});
    return compare(actual, {{"image.uint8", small_trace()["image.uint8"]}}, tolerances).pass();
  };
  CHECK(verdict(3, 2));        // mean 0.5
  CHECK_FALSE(verdict(3, 3));  // mean 0.75
}

TEST_CASE("JSON holds what a reader needs") {
  auto actual = small_trace();
  actual["step001.latent"] = actual["step001.latent"] + 1;
  const json result = to_json(compare(actual, small_trace(), Tolerances::uniform(0.5)));
  CHECK(result["pass"] == false);
  CHECK(result["first_divergence"] == "step001.latent");
  CHECK(result["worst"] == "step001.latent");
  CHECK(result["tensors"].size() == 5);
  CHECK(result["tensors"][3]["max_abs"] == 1.0);
  CHECK(result["tensors"][3]["shape"] == json({2, 3}));
  CHECK(result["unexpected"].empty());
}

}  // namespace
