// Products of float32 on tensor cores: each operand is read in two parts of 16 bits, its rounded
// value and what that leaves, and three of the four products of parts are summed in float32. In
// float16 two parts have 22 bits of fraction; where a value is below 1/8 the lower one leaves up to
// 2^-25. Operands that have 16 bits already are one part. In ATen; on the CPU parts are multiplied
// in float32. Values beyond the largest of `part` give no finite result.
#pragma once

#include "lib/tensor/types.h"

namespace diptych {

// x [n, h, w, in], weight [out, in], bias [out], all float32 -> [n, h, w, out]. One of n is there
// in parts at a time.
Tensor linear_in_parts(const Tensor& x, const Tensor& weight, const Tensor& bias,
                       at::ScalarType part);

// Scores that are there at a time where nothing else is said: 32 MiB, and as much for softmax.
inline constexpr std::int64_t kMostSplitScores = std::int64_t{1} << 23;
// softmax(q k^T / sqrt(c)) v in float32, of qkv [n, rows, 3 c] of float32 or of `part` ->
// [n, rows, c] in float32. Scores are written out, for some rows at a time: no fused attention for
// heads of hundreds of channels uses tensor cores well.
Tensor attend_in_parts(const Tensor& qkv, at::ScalarType part,
                       std::int64_t most_scores = kMostSplitScores);

}  // namespace diptych
