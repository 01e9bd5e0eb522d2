// Choosing the tokens behind several rows of logits at once.
#pragma once

#include "lib/sampling/token_sampler.h"

namespace diptych {

// next_token() of each row of logits and races, [rows, vocab] -> int64 [rows].
Tensor next_tokens(const Tensor& logits, const TokenSampling& sampling, const Tensor& race,
                   std::int64_t vocab_limit);

}  // namespace diptych
