// One name for the content of a checkpoint.
#pragma once

#include <filesystem>
#include <optional>
#include <stop_token>
#include <string>

#include "lib/tensor/checkpoint_files.h"

namespace diptych {

// Sha-256 (hex) over every tensor in order of its name: name, dtype, shape, and the sha-256 of each
// piece of 64 MiB of its bytes. The same for one file and for the same tensors in shards. Reads
// every byte, on all cores but two; a second time it is what KeptHash kept in `cache`.
// A stop that is requested meanwhile ends it early with an empty text. Throws RunError where a file
// cannot be read.
std::string checkpoint_hash(const CheckpointFiles& checkpoint, const std::stop_token& stop = {},
                            const std::optional<std::filesystem::path>& cache = std::nullopt);

}  // namespace diptych
