// In what a run computes: by its device and, on the CPU, by its weights.
#pragma once

#include <cstdint>
#include <functional>

#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>

#include "lib/base/choices.h"
#include "lib/tensor/checkpoint_files.h"

namespace diptych {

// What a checkpoint stores, as far as it decides in what a run computes.
struct StoredWeights {
  std::uint64_t bytes = 0;
  bool bfloat16 = false;  // most of them

  static StoredWeights of(const CheckpointFiles& files);
};

// `automatic`: bfloat16 on CUDA, float32 on the CPU.
at::ScalarType resolve_dtype(DtypeChoice choice, at::Device device);
// The same, but on the CPU `automatic` is bfloat16 for at least a gibibyte of weights that are
// stored so, where the processor multiplies it. `stored` is asked only where it decides.
at::ScalarType resolve_dtype(DtypeChoice choice, at::Device device,
                             const std::function<StoredWeights()>& stored);

bool cpu_multiplies_bfloat16();  // it has AVX512-BF16 or AMX-BF16

}  // namespace diptych
