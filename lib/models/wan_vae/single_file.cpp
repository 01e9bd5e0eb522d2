#include "lib/models/wan_vae/single_file.h"

#include <array>

#include <fmt/format.h>

#include "lib/base/error.h"
#include "lib/models/wan_vae/layout.h"

namespace diptych {
namespace {

constexpr std::array kPrefixes = {"first_stage_model.", "model.", "vae.", ""};

}  // namespace

std::optional<WanVaeFile> wan_vae_file(const CheckpointFiles& files) {
  for (const char* prefix : kPrefixes) {
    for (const WanVaeNaming naming : {WanVaeNaming::original, WanVaeNaming::diffusers}) {
      WanVaeConfig config;
      config.naming = naming;
      const WanVaePaths paths(config);
      const auto stored = [&](const std::string& name) {
        return fmt::format("{}{}.weight", prefix, name);
      };
      const auto owner = files.owner.find(stored(paths.post_quant_conv()));
      if (owner == files.owner.end() || !files.owner.contains(stored(paths.conv_in("decoder"))))
        continue;
      const auto& shape = files.files[owner->second].entries().find(owner->first)->second.shape;
      return WanVaeFile{prefix, naming, shape.empty() ? 0 : shape.front()};
    }
  }
  return std::nullopt;
}

std::map<std::string, std::string, std::less<>> wan_vae_names(const WanVaeConfig& config) {
  WanVaeConfig other = config;
  other.naming = WanVaeNaming::original;
  const auto original = wan_vae_layout(other);
  other.naming = WanVaeNaming::diffusers;
  const auto diffusers = wan_vae_layout(other);
  std::map<std::string, std::string, std::less<>> names;
  for (std::size_t i = 0; i < original.size(); ++i) names[original[i].name] = diffusers[i].name;
  return names;
}

WeightReading wan_vae_file_reading(const WanVaeFile& file, const WanVaeConfig& config) {
  WeightReading reading;
  reading.prefix = file.prefix;
  if (file.naming == WanVaeNaming::original) reading.names = wan_vae_names(config);
  return reading;
}

}  // namespace diptych
