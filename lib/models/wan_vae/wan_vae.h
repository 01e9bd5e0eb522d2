// The video autoencoders of Wan 2.1 and 2.2: clips to latents and back, chunk by chunk, so that
// what a pass holds does not grow with the clip. Latent frame 0 stands for one frame, each other
// for four. Port of Wan-Video/Wan2.2, wan/modules/vae2_1.py and vae2_2.py, as diffusers
// (autoencoder_kl_wan.py) and bytedance/Lance @4baeee0 run them; specs: wan.md section 10, lance.md
// section 10.
#pragma once

#include <functional>
#include <string_view>

#include "lib/models/wan_vae/config.h"
#include "lib/models/wan_vae/resample.h"
#include "lib/models/wan_vae/tiling.h"

namespace diptych {

struct WanVaeDownStage {
  std::vector<WanVaeResidualBlock> blocks;
  std::optional<WanVaeDownsample> downsample;
};

struct WanVaeUpStage {
  std::vector<WanVaeResidualBlock> blocks;
  std::optional<WanVaeUpsample> upsample;
};

struct WanVaeMiddle {
  WanVaeResidualBlock block_0, block_2;
  WanVaeAttention attention;
};

struct WanVaeHead {
  WanVaeNorm norm;
  WanVaeConv conv;
};

// Called with the chunk's number and the names of Lance's golden data: "encoder.conv1",
// "encoder.down0", "encoder.middle0", "encoder.out", "decoder.conv1", "decoder.up3", ...; without
// residual stages "encoder.down<i>" are the blocks and downsamplings, counted through all stages.
// "decoder.out" stands before patches become pixels. The values, [c, n, h, w], are good during the
// call only. wan_vae/trace.h has the names of Wan's golden data.
using WanVaeObserver =
    std::function<void(std::int64_t chunk, std::string_view name, const Tensor& value)>;

struct WanVaeMoments {
  Tensor mean, log_var;  // float32 [z, t, h, w], as the encoder gives them
  Tensor mu;             // the mean normalised: the latent of the posterior's mode
  // mean + exp(clamp(log_var, -30, 20) / 2) * eps, eps [z, t, h, w] a standard normal draw: not
  // normalised, as diffusers samples.
  Tensor sample(const Tensor& eps) const;
  // mu + exp(log_var / 2) * eps -> [t, h, w, z]: as Lance samples
  Tensor latent(const Tensor& eps) const;
};

struct WanVae {
  WanVaeConfig config;
  Tensor mean, inverse_std;  // [z], in the maps' dtype
  WanVaeLinear conv1;        // behind the encoder; quant_conv
  WanVaeLinear conv2;        // before the decoder; post_quant_conv
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

  // `weights`: the root of the file, with names as config.naming says, in the dtype to compute in:
  // float32, or bfloat16 as Lance's official code does on a GPU; float32 for compute.tf32. Throws
  // InputError for missing, misshapen and unknown tensors.
  static WanVae load(const Weights& weights, const WanVaeConfig& config,
                     const WanVaeCompute& compute = {});

  // video [3, T, H, W] in -1..1 on any device, T >= 1, H and W multiples of config.spatial();
  // frames beyond the last group of four are dropped. One chunk of four frames is on the device at
  // a time.
  WanVaeMoments encode(const Tensor& video, const WanVaeObserver& observer = {}) const;
  // In overlapping tiles, where the frames are larger than one: less memory, latents that differ a
  // little. Throws Interrupted between chunks. diffusers cuts 2.2's tiles out of patches by numbers
  // of pixels; here they are pixels.
  WanVaeMoments encode(const Tensor& video, const WanVaeTiling& tiling) const;

  // (latent - mean) * (1 / std), and back. latent [z, t, h, w], any floating dtype and device; the
  // tables are in its dtype.
  Tensor normalise(const Tensor& latent) const;
  Tensor denormalise(const Tensor& latent) const;
};

// A latent's frames as they are made. To stop early, let go of it.
class WanVaeDecoder {
 public:
  // latent [t, h, w, z] normalised, t >= 1, on any device. `vae` must outlive the decoder.
  WanVaeDecoder(const WanVae& vae, Tensor latent, WanVaeObserver observer = {});
  // In overlapping tiles, where the frames are larger than one: less memory on the device, a
  // picture that differs a little, and all frames in float32 in the host's memory, made by the
  // first next().
  WanVaeDecoder(const WanVae& vae, Tensor latent, const WanVaeTiling& tiling);
  // Together with the other ranks that share the request: each has the same latent, decodes a band
  // of its rows, and gets all frames from next(), which all of them call. WanVaeBand::divides() is
  // true of the latent's rows.
  WanVaeDecoder(const WanVae& vae, Tensor latent, Ranks& ranks);
  bool has_next() const { return chunk_ < latent_.size(0); }
  // The frames of the next latent frame, one for the first, else four: float32 [3, n, H, W] in
  // -1..1, on the weights' device; tiled on the CPU. Not to be called again behind an exception.
  // Tiled, throws Interrupted between latent frames.
  Tensor next();

 private:
  Tensor next_map();  // [n, h, w, channels], before patches become pixels
  Tensor decode_tiles() const;
  Tensor next_tiled();

  const WanVae& vae_;
  Tensor latent_;
  WanVaeObserver observer_;
  std::optional<WanVaeTiling> tiling_;
  Tensor tiled_;  // [T, h, w, channels], CPU: all frames, before patches become pixels
  std::optional<WanVaeBand> band_;  // of this rank, where several decode
  WanVaeHistory history_;           // of the layers at the latent's size, which have all rows
  WanVaeHistory band_history_;      // of those behind them
  std::int64_t chunk_ = 0;
};

// latents_mean or latents_std -> [z]
Tensor wan_vae_table(const std::vector<double>& values, const at::TensorOptions& options);

// [3, n, H, W] in -1..1 -> uint8 [n, H, W, 3], rounded half to even.
Tensor frames_to_uint8(const Tensor& frames);

}  // namespace diptych
