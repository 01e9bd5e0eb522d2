// What the files of a checkpoint store, without loading it.
#pragma once

#include <cstdint>
#include <string>

#include "lib/tensor/checkpoint_files.h"

namespace diptych {

std::uint64_t stored_bytes(const CheckpointFiles& checkpoint);  // of all tensors
std::uint64_t stored_bytes(const CheckpointFiles& checkpoint, at::ScalarType dtype);

// Whether a run on the CPU, in that dtype, uses the tensor where its file is mapped: it takes no
// memory of its own. False for a name that there is not.
bool is_view(const CheckpointFiles& checkpoint, const std::string& name, at::ScalarType dtype);
std::uint64_t view_bytes(const CheckpointFiles& checkpoint, at::ScalarType dtype);

// Throws BadWeights naming the first tensor, in the order of names, that holds NaN or infinity;
// reads all of them, slow.
void require_finite(const CheckpointFiles& checkpoint);

}  // namespace diptych
