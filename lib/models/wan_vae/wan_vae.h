// The Wan 2.2 video autoencoder (Wan2.2_VAE.pth): clips to latents and back, chunk by chunk, so
// that what a pass holds does not grow with the clip. Latent frame 0 stands for one frame, each
// other for four.
// Port of Wan-Video/Wan2.2, wan/modules/vae2_2.py, as bytedance/Lance @4baeee0 runs it; specs:
// lance.md section 10.
#pragma once

#include <functional>
#include <string_view>

#include "lib/models/wan_vae/resample.h"

namespace diptych {

struct WanVaeConfig {  // widths are read off the tensors; names as in diffusers' vae/config.json
  static constexpr std::int64_t kPatch = 2;     // a side of the pixels that are one position
  static constexpr std::int64_t kTemporal = 4;  // frames of a latent frame but the first
  std::int64_t base_dim = 160, decoder_base_dim = 256;
  std::int64_t z_dim = 48;  // as many as the release has means and deviations of
  std::vector<std::int64_t> dim_mult = {1, 2, 4, 4};
  std::int64_t num_res_blocks = 2;  // of an encoder stage; the decoder's have one more
  // Of each stage but the last; the decoder's in reverse order.
  std::vector<bool> temperal_downsample = {false, true, true};

  static WanVaeConfig infer(const Weights& weights);  // throws InputError naming the tensor
  std::size_t stages() const { return dim_mult.size(); }
  // Channels at a level of resolution, 0 the finest.
  std::int64_t encoder_dim(std::size_t level) const { return base_dim * dim_mult[level]; }
  std::int64_t decoder_dim(std::size_t level) const { return decoder_base_dim * dim_mult[level]; }
  std::int64_t spatial() const { return kPatch << (stages() - 1); }  // pixels of a latent's side
  static std::int64_t latent_frames(std::int64_t frames) { return 1 + (frames - 1) / kTemporal; }
  static std::int64_t frames(std::int64_t latent_frames) {
    return 1 + (latent_frames - 1) * kTemporal;
  }
};

struct WanVaeDownStage {
  std::vector<WanVaeResidualBlock> blocks;     // downsamples.0, ...
  std::optional<WanVaeDownsample> downsample;  // the last of downsamples
};

struct WanVaeUpStage {
  std::vector<WanVaeResidualBlock> blocks;  // upsamples.0, ...
  std::optional<WanVaeUpsample> upsample;   // the last of upsamples
};

struct WanVaeMiddle {
  WanVaeResidualBlock block_0, block_2;  // middle.0, middle.2
  WanVaeAttention attention;             // middle.1
};

struct WanVaeHead {
  WanVaeNorm norm;  // head.0
  WanVaeConv conv;  // head.2
};

// Called with the chunk's number and the names of the golden data: "encoder.conv1",
// "encoder.down0", "encoder.middle0", "encoder.out", "decoder.conv1", "decoder.up3", ... The
// values, [c, n, h, w], are good during the call only.
using WanVaeObserver =
    std::function<void(std::int64_t chunk, std::string_view name, const Tensor& value)>;

struct WanVaeMoments {
  Tensor mu, log_var;  // float32 [z, t, h, w]; mu normalised, log_var as the encoder gives it
  // mu + exp(log_var / 2) * eps, eps [z, t, h, w] a standard normal draw -> [t, h, w, z]
  Tensor latent(const Tensor& eps) const;
};

struct WanVae {
  WanVaeConfig config;
  Tensor mean, inverse_std;  // [z], in the weights' dtype
  WanVaeLinear conv1;        // behind the encoder
  WanVaeLinear conv2;        // before the decoder
  struct {
    WanVaeConv conv1;
    std::vector<WanVaeDownStage> downsamples;
    WanVaeMiddle middle;
    WanVaeHead head;
  } encoder;
  struct {
    WanVaeConv conv1;
    WanVaeMiddle middle;
    std::vector<WanVaeUpStage> upsamples;
    WanVaeHead head;
  } decoder;

  // `weights`: the root of the file, in the dtype to compute in: float32, or bfloat16 as the
  // official code does on a GPU. Throws InputError for missing, misshapen and unknown tensors.
  static WanVae load(const Weights& weights, const WanVaeConfig& config,
                     KernelPolicy kernels = KernelPolicy::automatic);

  // video [3, T, H, W] in -1..1 on any device, T >= 1, H and W multiples of config.spatial();
  // frames beyond the last group of four are dropped. One chunk of four frames is on the device at
  // a time.
  WanVaeMoments encode(const Tensor& video, const WanVaeObserver& observer = {}) const;
};

// A latent's frames as they are made. To stop early, let go of it.
class WanVaeDecoder {
 public:
  // latent [t, h, w, z] normalised, t >= 1, on any device. `vae` must outlive the decoder.
  WanVaeDecoder(const WanVae& vae, Tensor latent, WanVaeObserver observer = {});
  bool has_next() const { return chunk_ < latent_.size(0); }
  // The frames of the next latent frame, one for the first, else four: float32 [3, n, H, W] in
  // -1..1, on the weights' device. Not to be called again behind an exception.
  Tensor next();

 private:
  const WanVae& vae_;
  Tensor latent_;
  WanVaeObserver observer_;
  WanVaeHistory history_;
  std::int64_t chunk_ = 0;
};

// [3, n, H, W] in -1..1 -> uint8 [n, H, W, 3], rounded half to even.
Tensor frames_to_uint8(const Tensor& frames);

}  // namespace diptych
