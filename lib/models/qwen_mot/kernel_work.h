// What the GPU kernels of MotBackbone::forward have to do, family by family.
#pragma once

#include <vector>

#include "lib/models/matrices.h"
#include "lib/models/qwen_mot/plan.h"
#include "lib/runtime/kernel_work.h"
#include "lib/tuning/table.h"

namespace diptych {

// What serves a forward where there is a choice.
struct MotServedBy {
  const TuningTable* tuning = nullptr;  // by which the products are chosen, or null
  bool fp8_attention = false;           // of generation rows
  bool one_gated_kernel = false;        // multiplies and activates generation rows
  bool mixed_kernel = false;            // may multiply with weights of int8 as they are
};

// What each family of a forward through all layers has to do: every tensor that a kernel is given
// is read or written once. A kernel that multiplies and activates counts as gate_up_proj. `plan`:
// its numbers and lengths are used, its tensors are not.
std::vector<KernelWork> mot_work(const MotPlan& plan, const QwenConfig& config,
                                 const MatrixFormat& format, const MotServedBy& served_by);

}  // namespace diptych
