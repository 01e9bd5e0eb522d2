#include "lib/sampling/token_sampler.h"

#include <algorithm>
#include <cmath>

#include <ATen/Parallel.h>
#include <ATen/core/TransformationHelper.h>

#include "lib/base/error.h"
#include "lib/sampling/token_rows.h"
#include "lib/tensor/finite.h"

namespace diptych {
namespace {

constexpr double kLeastTemperature = 1e-4;  // below, ordinary logits could overflow float32

// sorted: probabilities, largest first, float32 [rows, n] -> bool [rows, n]: beyond the smallest
// set whose sum reaches top_p of the row's whole. A running sum of floats on the GPU depends on the
// order in which its blocks finish; one of integers does not.
Tensor outside_nucleus(const Tensor& sorted, double top_p) {
  constexpr double kUnits = static_cast<double>(std::int64_t{1} << 40);
  const Tensor mass = (sorted.to(at::kDouble) * kUnits).to(at::kLong);
  const Tensor through = mass.cumsum(1), before = through - mass;
  const Tensor whole = through.narrow(1, through.size(1) - 1, 1);
  return before.to(at::kDouble) >= whole.to(at::kDouble) * top_p;
}

// p, race float32 [rows, n] -> int64 [rows]
Tensor race_winners(const Tensor& p, const Tensor& race, const TokenSampling& sampling) {
  if (sampling.top_k == 0 && sampling.top_p == 1) return (p / race).argmax(1);
  const auto [sorted, ids] = at::sort(p, /*stable=*/true, 1, /*descending=*/true);
  const std::int64_t kept = sampling.top_k == 0 ? p.size(1) : std::min(sampling.top_k, p.size(1));
  const Tensor best = sorted.narrow(1, 0, kept), best_ids = ids.narrow(1, 0, kept);
  Tensor score = best / race.gather(1, best_ids);
  if (sampling.top_p < 1) score.masked_fill_(outside_nucleus(best, sampling.top_p), -1);
  return best_ids.gather(1, score.argmax(1, /*keepdim=*/true)).squeeze(1);
}

}  // namespace

void TokenSampling::check() const {
  if (temperature != 0 && !(temperature >= kLeastTemperature && std::isfinite(temperature))) {
    throw InputError(Setting::of("temperature"), "found {}, expected 0 (greedy) or at least {}",
                     temperature, kLeastTemperature);
  }
  if (top_k < 0)
    throw InputError(Setting::of("top_k"), "found {}, expected 0 (all) or more", top_k);
  if (!(top_p > 0 && top_p <= 1)) {
    throw InputError(Setting::of("top_p"), "found {}, expected more than 0 and at most 1", top_p);
  }
}

Tensor next_token(const Tensor& logits, const TokenSampling& sampling, const Tensor& race,
                  std::int64_t vocab_limit) {
  TORCH_CHECK(logits.dim() == 1, "[next_token] logits ", logits.sizes());
  return next_tokens(logits.unsqueeze(0), sampling, race.defined() ? race.unsqueeze(0) : race,
                     vocab_limit);
}

Tensor next_tokens(const Tensor& logits, const TokenSampling& sampling, const Tensor& race,
                   std::int64_t vocab_limit) {
  sampling.check();
  TORCH_CHECK(logits.dim() == 2, "[next_tokens] logits ", logits.sizes());
  TORCH_CHECK(vocab_limit >= 1 && vocab_limit <= logits.size(1), "[next_tokens] limit ",
              vocab_limit, " of ", logits.size(1), " logits");
  Tensor scores = logits.narrow(1, 0, vocab_limit);
  Tensor ids;
  if (sampling.temperature == 0) {
    ids = scores.argmax(1);
  } else {
    TORCH_CHECK(
        race.defined() && race.sizes() == logits.sizes() && race.device() == logits.device(),
        "[next_tokens] a race is needed for ", logits.sizes(), " on ", logits.device());
    scores = scores.to(at::kFloat) / sampling.temperature;
    ids = race_winners(at::softmax(scores, 1), race.narrow(1, 0, vocab_limit), sampling);
  }
  // The largest is NaN where any is.
  const Tensor finite = at::isfinite(scores.amax(1));
  return ids.masked_fill_(finite.logical_not(), kNoToken);
}

std::int64_t read_token(const Tensor& id) {
  const auto value = id.item<std::int64_t>();
  if (value == kNoToken) {
    throw NotFinite("no next token can be chosen: the logits are not finite (NaN or infinity)");
  }
  return value;
}

// Tensor::exponential_ gives the same (at::exponential_distribution), but one after the other: of a
// large vocabulary that takes as long as the GPU takes for a token.
Tensor RaceDraws::next() {
  const auto cpu = at::TensorOptions().device(at::kCPU);
  const Tensor uniform = at::empty({vocab_}, cpu.dtype(at::kDouble)).uniform_(0, 1, generator_);
  Tensor race = at::empty({vocab_}, cpu.dtype(at::kFloat));
  const auto* from = uniform.const_data_ptr<double>();
  auto* to = race.data_ptr<float>();
  constexpr std::int64_t kGrain = 4096;
  at::parallel_for(0, vocab_, kGrain, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i)
      to[i] = static_cast<float>(at::transformation::exponential<double>(from[i], 1.0));
  });
  return race;
}

Tensor RacesAhead::next() {
  Tensor race = draws_.next();
  states_.push_back(copy_.get_state());
  return race;
}

void RacesAhead::use(std::size_t count) {
  TORCH_CHECK(count <= states_.size(), "[races] ", count, " used of ", states_.size());
  if (count == 0) return;
  generator_.set_state(states_[count - 1]);
  states_.erase(states_.begin(), states_.begin() + static_cast<std::ptrdiff_t>(count));
}

}  // namespace diptych
