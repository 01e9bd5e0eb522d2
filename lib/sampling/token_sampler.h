// Choosing the next token: greedy, or sampled as torch.multinomial samples on the CPU.
#pragma once

#include <cstdint>
#include <deque>

#include <ATen/core/Generator.h>

#include "lib/tensor/types.h"

namespace diptych {

struct TokenSampling {
  double temperature = 0;  // 0: greedy
  std::int64_t top_k = 0;  // 0: all
  double top_p = 1;        // 1: all

  // Throws InputError naming the value unless temperature is 0 or 0.0001 and more, top_k is not
  // negative and 0 < top_p <= 1.
  void check() const;

  bool operator==(const TokenSampling&) const = default;
};

// What next_token gives where no token can be chosen.
inline constexpr std::int64_t kNoToken = -1;

// logits [vocab] in the model's dtype, on the CPU or on CUDA -> int64 [1] on the same device, an id
// below vocab_limit (ids from there on have no text and are left out before anything is summed up).
//
// Greedy: the largest logit. Sampled: p = softmax(logits / temperature) in float32; of these the
// top_k most probable; of these, their sum taken for 1, the smallest set of the most probable whose
// sum reaches top_p, at least one; of these the largest p / race, where race are independent
// exponential(1) draws, float32 [vocab] on the same device: the exponential race in which an id
// comes first with probability p. ATen's multinomial of one sample is the same
// (aten/src/ATen/native/Distributions.cpp). Greedy takes no race: it may be undefined.
//
// Ties go to the lowest id, but among sampled ids under top_k or top_p to the more probable first.
// Sums for top_p are of multiples of 2^-40, so that they do not depend on an order of adding.
//
// Waits for nothing and reads nothing back, so it can be captured in a CUDA graph. It can therefore
// not throw for logits that are NaN, or whose largest is infinite: it gives kNoToken then, and
// whoever reads the id checks it (read_token). An id that feeds the model before it is read must be
// clamped to 0 on the device first. Throws as TokenSampling::check.
Tensor next_token(const Tensor& logits, const TokenSampling& sampling, const Tensor& race,
                  std::int64_t vocab_limit);

// The id of next_token on the host; waits for the device. Throws RunError for kNoToken.
std::int64_t read_token(const Tensor& id);

// The races of one text, token by token, as torch.multinomial over rows of `vocab` logits draws
// them on the CPU. The generator is shared, not copied: what else is drawn from it before and after
// (posterior noise, start noise) stays in the official order.
class RaceDraws {
 public:
  RaceDraws(at::Generator generator, std::int64_t vocab)
      : generator_(std::move(generator)), vocab_(vocab) {}
  Tensor next();  // float32 [vocab], CPU

 private:
  at::Generator generator_;
  std::int64_t vocab_;
};

// The same for who draws before it is known how long the text is: races are drawn from a copy, and
// the generator itself moves on only past those that are used.
class RacesAhead {
 public:
  RacesAhead(at::Generator generator, std::int64_t vocab)
      : generator_(std::move(generator)), copy_(generator_.clone()), draws_(copy_, vocab) {}
  Tensor next();  // as RaceDraws
  // The first `count` of the races that were drawn and not yet used. No more than these.
  void use(std::size_t count);

 private:
  at::Generator generator_, copy_;
  RaceDraws draws_;
  std::deque<Tensor> states_;  // of the generator, behind each race that is not yet used
};

}  // namespace diptych
