// The sizes of a Wan video autoencoder, as vae/config.json (AutoencoderKLWan) gives them, and what
// its tensors are called.
#pragma once

#include <cstdint>
#include <filesystem>
#include <vector>

#include "lib/tensor/weights.h"

namespace diptych {

// Two namings are in use: of the original files ("decoder.upsamples.0.residual.2.weight",
// Wan2.2_VAE.pth) and of diffusers ("decoder.up_blocks.0.resnets.0.conv1.weight").
enum class WanVaeNaming { original, diffusers };

struct WanVaeConfig {  // config.json's names; the values are Wan 2.1's
  static constexpr std::int64_t kColours = 3;
  static constexpr std::int64_t kTemporal = 4;  // frames of a latent frame but the first

  std::int64_t base_dim = 96, decoder_base_dim = 96;
  std::int64_t z_dim = 16;
  std::vector<std::int64_t> dim_mult = {1, 2, 4, 4};
  std::int64_t num_res_blocks = 2;  // of an encoder stage; the decoder's have one more
  // Of each stage but the last; the decoder's in reverse order.
  std::vector<bool> temperal_downsample = {false, true, true};
  bool is_residual = false;     // 2.2: stages have shortcuts, and upsampling keeps the width
  std::int64_t patch_size = 1;  // a side of the pixels that are one position; 2.2: 2
  std::vector<double> latents_mean, latents_std;  // [z_dim] each
  WanVaeNaming naming = WanVaeNaming::diffusers;

  static WanVaeConfig wan21();  // the released sizes, the naming of diffusers
  static WanVaeConfig wan22();
  // vae/config.json. A key that is missing or null counts as wan21() has it. Throws InputError
  // naming file and key: for a value out of range, sizes that do not fit each other, and what this
  // code does not compute (attention within stages, other factors of compression).
  static WanVaeConfig load(const std::filesystem::path& path);
  // Of Wan2.2_VAE.pth, which has no config.json: widths are read off the tensors. Dummy weights:
  // the released widths. Throws InputError naming the tensor.
  static WanVaeConfig infer(const Weights& weights);

  std::size_t stages() const { return dim_mult.size(); }
  // Channels at a level of resolution, 0 the finest.
  std::int64_t encoder_dim(std::size_t level) const { return base_dim * dim_mult[level]; }
  std::int64_t decoder_dim(std::size_t level) const { return decoder_base_dim * dim_mult[level]; }
  // Stages are counted as they run. Channels that a stage gets, that its blocks give, and that its
  // upsampling gives.
  std::int64_t encoder_in(std::size_t stage) const {
    return stage == 0 ? base_dim : encoder_dim(stage - 1);
  }
  std::int64_t decoder_in(std::size_t stage) const {
    return stage == 0 ? decoder_dim(stages() - 1) : upsampled_dim(stage - 1);
  }
  std::int64_t decoder_out(std::size_t stage) const { return decoder_dim(stages() - 1 - stage); }
  std::int64_t upsampled_dim(std::size_t stage) const {
    return is_residual ? decoder_out(stage) : decoder_out(stage) / 2;
  }
  bool halves_time(std::size_t stage) const { return temperal_downsample[stage]; }
  bool doubles_time(std::size_t stage) const { return temperal_downsample[stages() - 2 - stage]; }
  // Of a chunk that is not the first, where a stage begins.
  std::int64_t encoder_frames(std::size_t stage) const {
    std::int64_t frames = kTemporal;
    for (std::size_t s = 0; s < stage; ++s) frames /= halves_time(s) ? 2 : 1;
    return frames;
  }
  std::int64_t decoder_frames(std::size_t stage) const {
    std::int64_t frames = 1;
    for (std::size_t s = 0; s < stage; ++s) frames *= doubles_time(s) ? 2 : 1;
    return frames;
  }

  std::int64_t patch_channels() const { return kColours * patch_size * patch_size; }
  std::int64_t spatial() const {
    return patch_size << (stages() - 1);
  }  // pixels of a latent's side
  static std::int64_t latent_frames(std::int64_t frames) { return 1 + (frames - 1) / kTemporal; }
  static std::int64_t frames(std::int64_t latent_frames) {
    return 1 + (latent_frames - 1) * kTemporal;
  }
};

// How the tensors of a file are called; of dummy weights, which have every name: diffusers.
WanVaeNaming wan_vae_naming_of(const Weights& weights);

}  // namespace diptych
