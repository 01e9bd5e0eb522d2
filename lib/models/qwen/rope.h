// The angles by which a Qwen model rotates q and k.
#pragma once

#include <utility>

#include <c10/core/ScalarType.h>

#include "lib/models/qwen/config.h"
#include "lib/tensor/types.h"

namespace diptych {

// position * theta^(-2j / head_dim) for j < head_dim / 2, which both halves of a head share.
// position_ids: int64 [rows], or [3, rows] where the config has an mrope_section: temporal,
// vertical and horizontal positions. Its parts, doubled, cut a head into six chunks, and chunk c
// takes its positions from row c mod 3. Rows of one position each have the same angles with a
// section and without. -> float32 [rows, head_dim / 2], on the ids' device. Throws c10::Error for
// ids of another shape.
Tensor rope_angles(const Tensor& position_ids, const QwenConfig& config);
// rope_table() of these angles: what rows in `dtype` are rotated by.
std::pair<Tensor, Tensor> qwen_rope_table(const Tensor& position_ids, const QwenConfig& config,
                                          at::ScalarType dtype);

}  // namespace diptych
