#include "tests/sampling/token_cases.h"

#include <limits>

#include <doctest/doctest.h>

#include "lib/base/error.h"
#include "lib/tensor/noise.h"

namespace diptych::token_cases {
namespace {

constexpr std::int64_t kVocab = 640, kLimit = 622;

std::int64_t choose(const Tensor& logits, const TokenSampling& sampling, const Tensor& race,
                    std::int64_t limit) {
  const Tensor id = next_token(logits, sampling, race, limit);
  CHECK(id.sizes() == at::IntArrayRef({1}));
  CHECK((id.scalar_type() == at::kLong));
  CHECK(id.device() == logits.device());
  return id.item<std::int64_t>();
}

}  // namespace

Tensor sequence_logits(std::int64_t step) {
  const Tensor base = at::arange(kVocab, at::kLong).mul(37).remainder(101).to(at::kDouble) / 20;
  return base.roll({step * 11}).to(at::kFloat);
}

void check_choices(at::Device device) {
  // Softmax of the first seven: .339 .125 .076 .339 .017 .046 .059
  const Tensor logits = at::tensor({2.F, 1.F, 0.5F, 2.F, -1.F, 0.F, 0.25F, 3.F}).to(device);
  const Tensor race = at::tensor({1.7F, .3F, .09F, 1.1F, .013F, .2F, .06F, .001F}).to(device);
  struct Choice {
    TokenSampling sampling;
    std::int64_t id;
  };
  const std::vector<Choice> choices = {
      {{0, 0, 1}, 0},                                       // a tie goes to the lowest id
      {{1, 0, 1}, 4},                                       // .017 / .013 beats all
      {{0.5, 0, 1}, 3},                                     // colder
      {{0.3, 0, 1}, 3},  {{3, 0, 1}, 4},   {{1, 1, 1}, 0},  // top_k: 0 and 3 tie
      {{1, 2, 1}, 3},    {{1, 3, 1}, 1},   {{1, 4, 1}, 2},    {{1, 5, 1}, 6},
      {{1, 6, 1}, 6},    {{1, 7, 1}, 4},   {{1, 100, 1}, 4},  // more than there are: all
      {{1, 0, 1e-6}, 0},                                      // top_p keeps at least one
      {{1, 0, 0.3}, 0},  {{1, 0, 0.6}, 3}, {{1, 0, 0.75}, 1}, {{1, 0, 0.85}, 2},
      {{1, 0, 0.92}, 6}, {{1, 3, 0.5}, 3},  // of the three kept by top_k, whose sum is .803
      {{1, 3, 0.9}, 1},
  };
  for (const auto& [sampling, id] : choices) {
    CAPTURE(sampling.temperature);
    CAPTURE(sampling.top_k);
    CAPTURE(sampling.top_p);
    const Tensor drawn = sampling.temperature > 0 ? race : Tensor();
    CHECK(choose(logits, sampling, drawn, 7) == id);
    CHECK(choose(logits, sampling, drawn, 8) == 7);  // the best of all, once it may be chosen
  }
  const Tensor narrow = at::tensor({1.F, 3.F, 3.F, 2.F}).to(device, at::kBFloat16);
  CHECK(choose(narrow, {}, {}, 4) == 1);
}

void check_sequences(at::Device device) {
  struct Sequence {
    TokenSampling sampling;
    std::vector<std::int64_t> ids;
  };
  const std::vector<Sequence> sequences = {
      {{0.9, 0, 1}, {311, 502, 4, 502, 265, 426, 415, 103, 437, 95, 369, 16}},
      {{0.9, 20, 1}, {333, 273, 82, 29, 437, 287, 459, 511, 118, 95, 200, 16}},
      {{0.9, 0, 0.35}, {311, 453, 82, 172, 265, 287, 306, 51, 118, 95, 462, 16}},
      {{1.3, 50, 0.8}, {333, 273, 82, 82, 265, 287, 459, 51, 118, 95, 462, 16}},
  };
  for (const auto& [sampling, expected] : sequences) {
    RaceDraws draws(cpu_generator(7), kVocab);
    std::vector<std::int64_t> ids;
    for (std::int64_t step = 0; step < 12; ++step) {
      const Tensor logits = sequence_logits(step).to(device);
      ids.push_back(choose(logits, sampling, draws.next().to(device), kLimit));
    }
    CHECK(ids == expected);
  }
}

void check_not_finite(at::Device device) {
  constexpr float kInf = std::numeric_limits<float>::infinity(), kNan = NAN;
  const Tensor race = at::full({4}, 0.5F).to(device);
  for (const TokenSampling& sampling :
       {TokenSampling{}, {1, 0, 1}, {1, 2, 1}, {1, 0, 0.5}, {1, 3, 0.5}}) {
    CAPTURE(sampling.temperature);
    for (const auto dtype : {at::kFloat, at::kBFloat16}) {
      const auto id = [&](std::vector<float> values, std::int64_t limit) {
        return next_token(at::tensor(values).to(device, dtype), sampling, race, limit);
      };
      CHECK(id({1, kNan, 2, 0}, 4).item<std::int64_t>() == kNoToken);
      CHECK(id({1, kInf, 2, 0}, 4).item<std::int64_t>() == kNoToken);
      CHECK(id({-kInf, -kInf, -kInf, 1}, 3).item<std::int64_t>() == kNoToken);
      CHECK(id({1, -kInf, 9, 0}, 4).item<std::int64_t>() == 2);
      CHECK(id({1, 0, 9, kNan}, 3).item<std::int64_t>() == 2);  // beyond the limit is not looked at
      CHECK(read_token(id({1, 0, 9, kNan}, 3)) == 2);
      CHECK_THROWS_AS(read_token(id({1, kNan, 2, 0}, 4)), RunError);
    }
  }
}

}  // namespace diptych::token_cases
