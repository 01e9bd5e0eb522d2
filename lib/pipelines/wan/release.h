// The released models of Wan: how a folder's config files name one, and what it was made for.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lib/config/family_config.h"
#include "lib/pipelines/wan/settings.h"

namespace diptych {

// What model_index.json and scheduler_config.json say.
struct WanIndex {
  bool expand_timesteps = false;         // TI2V: every row has a timestep of its own
  std::optional<double> boundary_ratio;  // of two experts
  bool has_second_expert = false, has_image_encoder = false;
  double flow_shift = 3;
  bool from_picture = false;  // its pipeline is WanImageToVideoPipeline

  // Throws InputError naming file and key.
  static WanIndex load(const std::filesystem::path& folder);
};

bool owns_wan(const std::filesystem::path& folder);

// Defaults of the model that the run names: its folder's, by the sizes of its transformer, or the
// named release's (diffusers' and FastVideo's presets; specs: wan.md 1.2). Throws as
// WanIndex::load.
std::vector<OwnDefault> wan_defaults(const RunConfig& run);

// Whether the model that the run names has one transformer for high noise and one for low. Throws
// as WanIndex::load.
bool wan_has_experts(const RunConfig& run);

// The release that these sizes are of: width of the transformer, channels in and layers.
WanRelease wan_release_of(std::int64_t heads, std::int64_t in_channels, bool experts);

}  // namespace diptych
