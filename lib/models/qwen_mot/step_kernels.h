// The GPU kernels of MotBackbone::forward by what they are for: the families of those that ran, and
// what each family has to do.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "lib/models/qwen_mot/backbone.h"
#include "lib/runtime/kernel_work.h"
#include "lib/runtime/launches.h"
#include "lib/tuning/table.h"

namespace diptych {

// The family of each of `activities`, which are in order of their start and begin with a forward of
// `layers` layers or work before it. Projections and attention are told apart by the kernels they
// lie between (a product that the activation follows is gate_up_proj; gated_linear is both) and, of
// generation and understanding rows, by their order ("o_proj gen", "o_proj und"). What serves no
// such purpose keeps its name without parameters.
std::vector<std::string> kernel_families(std::span<const GpuActivity> activities,
                                         std::int64_t layers);

// What serves a forward where there is a choice.
struct MotServedBy {
  const TuningTable* tuning = nullptr;  // by which the products are chosen, or null
  bool fp8_attention = false;           // of generation rows
  bool one_gated_kernel = false;        // multiplies and activates generation rows
  bool mixed_kernel = false;            // may multiply with weights of int8 as they are
};

// What each family of a forward of this plan has to do: of all layers, every tensor a kernel is
// given read or written once. Of `plan` only numbers and lengths are looked at, not its tensors.
// A kernel that multiplies and activates counts as gate_up_proj.
std::vector<KernelWork> mot_work(const MotPlan& plan, const QwenConfig& config,
                                 const MatrixFormat& format, const MotServedBy& served_by);

}  // namespace diptych
