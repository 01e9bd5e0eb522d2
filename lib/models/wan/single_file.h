// A transformer of Wan in one file: which naming it has, the sizes that its tensors say, and how it
// is read. specs: wan-weights.md 6.
#pragma once

#include <optional>
#include <string>

#include "lib/models/wan/config.h"
#include "lib/tensor/checkpoint_files.h"
#include "lib/tensor/weight_sources.h"

namespace diptych {

struct WanFileNaming {
  std::string prefix;     // "model.diffusion_model." or the like, "" = none
  bool original = false;  // Wan's own names, not those of diffusers
};

// Nothing where the files hold no transformer of Wan.
std::optional<WanFileNaming> wan_file_naming(const CheckpointFiles& files);

// The sizes of the tensors, which do not say how many heads there are: as in `known` where that has
// the same width, else of 128 each. Throws InputError naming file and tensor where one that says a
// size is missing or of a shape that no transformer of Wan has.
WanConfig wan_file_sizes(const CheckpointFiles& files, const WanFileNaming& naming,
                         const std::optional<WanConfig>& known);

// Without changes.
WeightReading wan_file_reading(const WanFileNaming& naming, const WanConfig& config);

}  // namespace diptych
