// The FLUX.1 autoencoder (ae.safetensors): pictures to latents and back.
// Port of ByteDance-Seed/Bagel @056b5fd, modeling/autoencoder.py; specs: bagel.md section 8.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string_view>
#include <vector>

#include "lib/base/choices.h"
#include "lib/tensor/weights.h"

namespace diptych {

struct FluxVaeConfig {  // sizes are read off the tensors; no config file carries them
  std::int64_t ch = 128;
  std::vector<std::int64_t> ch_mult = {1, 2, 4, 4};
  std::int64_t num_res_blocks = 2;
  std::int64_t z_channels = 16;
  double scale_factor = 0.3611, shift_factor = 0.1159;

  // Both throw InputError naming the tensor.
  static FluxVaeConfig infer(const Weights& weights);
  // The same; the file must have every tensor that this implies, in its shape.
  static FluxVaeConfig checked(const Weights& weights);
  std::int64_t downsample() const { return std::int64_t{1} << (ch_mult.size() - 1); }
};

// How the passes compute. tf32: operands of convolutions and products are rounded to TF32, maps
// and weights are in channels_last, which tensor cores read as it is; sums, statistics and what
// runs past the residual blocks stay float32.
struct VaeCompute {
  bool tf32 = false;
  KernelPolicy kernels = KernelPolicy::automatic;  // of tf32: libtorch has no norm in channels_last
  at::MemoryFormat layout() const {
    return tf32 ? at::MemoryFormat::ChannelsLast : at::MemoryFormat::Contiguous;
  }
};

struct VaeConv {
  Tensor weight, bias;  // [out, in, k, k], [out]
  VaeCompute compute;
  static VaeConv load(const Weights& weights, std::int64_t out, std::int64_t in,
                      std::int64_t kernel, const VaeCompute& compute);
  Tensor forward(const Tensor& x, std::int64_t stride = 1) const;  // padding k / 2 at stride 1
};

struct VaeNorm {  // GroupNorm
  static constexpr std::int64_t kGroups = 32;
  static constexpr double kEps = 1e-6;
  Tensor weight, bias;  // [channels]
  VaeCompute compute;
  static VaeNorm load(const Weights& weights, std::int64_t channels, const VaeCompute& compute);
  Tensor forward(const Tensor& x) const;
  Tensor activated(const Tensor& x) const;  // silu of it
};

struct VaeResBlock {
  VaeNorm norm1, norm2;
  VaeConv conv1, conv2;
  std::optional<VaeConv> nin_shortcut;  // where the channel count changes
  static VaeResBlock load(const Weights& weights, std::int64_t in, std::int64_t out,
                          const VaeCompute& compute);
  Tensor forward(const Tensor& x) const;
};

struct VaeAttention {  // one head over all pixels
  // Of logits at a time in TF32, where nothing else is said.
  static constexpr std::int64_t kLogitBytes = std::int64_t{256} << 20;
  VaeNorm norm;
  VaeConv q, k, v, proj_out;
  static VaeAttention load(const Weights& weights, std::int64_t channels,
                           const VaeCompute& compute);
  // `most_queries`: pixels that ask at a time; the result is the same but for rounding.
  Tensor forward(const Tensor& x, std::optional<std::int64_t> most_queries = {}) const;
};

struct VaeMid {
  VaeResBlock block_1, block_2;
  VaeAttention attn_1;
  static VaeMid load(const Weights& weights, std::int64_t channels, const VaeCompute& compute);
};

struct VaeLevel {
  std::vector<VaeResBlock> block;
  std::optional<VaeConv> resample;  // downsample.conv or upsample.conv
};

// Called with the names of the golden data: "encoder.down.0.downsample", "decoder.mid.attn_1", ...
// The values are good during the call only: what follows may overwrite them.
using VaeObserver = std::function<void(std::string_view name, const Tensor& value)>;

// A pass that holds, beside the maps that a step reads and writes, only strips of them (strips.h).
// The result is the same but for rounding.
struct VaeStrips {
  std::int64_t max_bytes = std::int64_t{64} << 20;  // of a strip's input and output
};

struct FluxVae {
  FluxVaeConfig config;
  VaeCompute compute;
  struct {
    VaeConv conv_in, conv_out;
    std::vector<VaeLevel> down;
    VaeMid mid;
    VaeNorm norm_out;
  } encoder;
  struct {
    VaeConv conv_in, conv_out;
    std::vector<VaeLevel> up;  // by level, run from the last to the first
    VaeMid mid;
    VaeNorm norm_out;
  } decoder;

  // `weights`: the root of ae.safetensors, float32, and not within a ReadAhead: for TF32 they are
  // rounded as they come.
  static FluxVae load(const Weights& weights, const FluxVaeConfig& config,
                      const VaeCompute& compute = {});

  // Both passes throw Interrupted between their steps.
  // image [n, 3, H, W] in -1..1, H and W multiples of downsample() -> [n, 2 * z, H / 8, W / 8]:
  // mean, then log variance.
  Tensor encode_moments(const Tensor& image, const VaeObserver& observer = {},
                        const std::optional<VaeStrips>& strips = {}) const;
  // moments and a standard normal draw [n, z, h, w] (undefined: the mean) -> scaled latent.
  Tensor latent_from_moments(const Tensor& moments, const Tensor& noise) const;
  // latent [n, z, h, w] -> image [n, 3, 8 h, 8 w], not clamped.
  Tensor decode(const Tensor& latent, const VaeObserver& observer = {},
                const std::optional<VaeStrips>& strips = {}) const;
};

}  // namespace diptych
