// Where the weights of a part of Wan come from: the checkpoint's folder, or a file that was given
// in its place; and how they are read, whatever their naming.
#pragma once

#include <array>
#include <cstddef>
#include <filesystem>
#include <string_view>

#include "lib/models/umt5/config.h"
#include "lib/models/wan/config.h"
#include "lib/models/wan_vae/config.h"
#include "lib/pipelines/wan/settings.h"
#include "lib/tensor/weights.h"

namespace diptych {

// Of the experts, high noise first.
inline constexpr std::array<const char*, 2> kWanTransformers = {"transformer", "transformer_2"};
inline constexpr const char *kWanText = "text_encoder", *kWanVae = "vae";

struct WanPlace {  // of the weights on their way
  at::Device device;
  at::ScalarType dtype;
};

// All functions throw InputError naming the flag of a file that was given, or the file and tensor
// or key.
class WanParts {
 public:
  WanParts(std::filesystem::path folder, WanSettings settings);

  // The file that was given for the part, or its folder.
  std::filesystem::path path(std::string_view part) const;
  // What says its sizes: that file, or config.json.
  std::filesystem::path sizes_file(std::string_view part) const;
  bool is_given(std::string_view part) const { return !file(part).empty(); }
  bool gives_any() const;

  CheckpointFiles transformer_files() const;
  // By its config.json; of a file that was given, by its tensors.
  WanConfig transformer() const;
  // config.json's; without one, the released sizes.
  Umt5Config text_encoder() const;
  WanVaeConfig vae() const;

  Weights open_transformer(std::size_t place, const WanConfig& config, const WanPlace& at,
                           WeightChanges changes) const;
  Weights open_text_encoder(const Umt5Config& config, const WanPlace& at) const;
  Weights open_vae(const WanVaeConfig& config, const WanPlace& at) const;

 private:
  const std::filesystem::path& file(std::string_view part) const;
  std::filesystem::path config_file(std::string_view part) const;
  std::filesystem::path folder_;
  WanSettings settings_;
};

Umt5Config released_umt5();  // google/umt5-xxl

// Throws InputError where tensors of the layout are missing or have another shape, and for those
// that it does not have.
void check_tensors(const Weights& weights, const std::vector<TensorShape>& layout);

}  // namespace diptych
