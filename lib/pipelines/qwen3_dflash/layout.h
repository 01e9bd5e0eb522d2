// The tensors of a Qwen3 checkpoint.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "lib/models/qwen3/qwen3.h"
#include "lib/tensor/weights.h"

namespace diptych {

// Throws InputError for the first tensor that is missing or has another shape than the config says,
// and for tensors beyond these. Reads headers only.
void check_qwen3_tensors(const Weights& weights, const Qwen3Config& config);

// What the folder lacks, or holds beyond or in another shape than its config says.
std::vector<std::string> check_qwen3_layout(const std::filesystem::path& folder);

}  // namespace diptych
