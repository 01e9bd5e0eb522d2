// The LoRA files of a run: what they change of each expert's weights.
#pragma once

#include <array>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "lib/base/log.h"
#include "lib/models/wan/config.h"
#include "lib/pipelines/wan/settings.h"
#include "lib/session/result.h"
#include "lib/tensor/weight_sources.h"

namespace diptych {

struct WanLoras {
  std::array<WeightChanges, 2> changes;      // of the expert for high noise, or the only one; low
  std::vector<std::string> parts;            // of each file, by kWanLoraParts; "" = the only one
  std::vector<std::filesystem::path> files;  // in the order they were given
};

// Of two experts a file is for the one that --lora names, else for the one that the name of the
// file does ("high", "low", as words), else for both; a file whose own keys begin with
// "transformer_2." says it itself. What each file does is said in one line. Throws InputError about
// the setting "lora": as read_lora(), and for an expert that the model does not have.
WanLoras read_wan_loras(const WanSettings& settings, const WanConfig& config, bool has_experts,
                        Log& log);

// "high" or "low" where the name of a file holds one of them as a word; "" where it holds none, or
// both: "wan2.2_HighNoise.safetensors", but not "flow.safetensors".
std::string_view expert_of_name(std::string_view name);

// In the same order; reads all of the files.
std::vector<AddedWeightsRecord> recorded_loras(const WanLoras& loras);

}  // namespace diptych
