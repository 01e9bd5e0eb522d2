// An autoencoder of Wan in one file, in the naming of diffusers or of Wan's own release. specs:
// wan-weights.md 6.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "lib/models/wan_vae/config.h"
#include "lib/tensor/checkpoint_files.h"
#include "lib/tensor/weight_sources.h"

namespace diptych {

struct WanVaeFile {
  std::string prefix;  // "model." or the like, "" = none
  WanVaeNaming naming = WanVaeNaming::diffusers;
  std::int64_t z_dim = 0;  // latent channels: 16 of Wan 2.1, 48 of Wan 2.2
};
// Nothing where the files hold no autoencoder of Wan.
std::optional<WanVaeFile> wan_vae_file(const CheckpointFiles& files);

// Wan's own name of each tensor -> that of diffusers.
std::map<std::string, std::string, std::less<>> wan_vae_names(const WanVaeConfig& config);
WeightReading wan_vae_file_reading(const WanVaeFile& file, const WanVaeConfig& config);

}  // namespace diptych
