// The building blocks of the Wan video autoencoders. A feature map is [n, h, w, c], contiguous: n
// frames in channels_last, which is the same memory as one clip in channels_last_3d, so that
// products of 1x1 kernels, two-dimensional and three-dimensional convolutions read it as it is.
// Convolutions give the dtype of their weights, or a map where they add to one; everything else is
// in the dtype of the maps (precision.h).
// Port of Wan-Video/Wan2.2, wan/modules/vae2_2.py, as bytedance/Lance @4baeee0 runs it; specs:
// lance.md section 10.1. Wan 2.1 has the same blocks.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "lib/base/choices.h"
#include "lib/models/wan_vae/band.h"
#include "lib/models/wan_vae/layout.h"
#include "lib/models/wan_vae/precision.h"
#include "lib/tensor/weights.h"

namespace diptych {

struct WanVaeCompute {
  KernelPolicy kernels = KernelPolicy::automatic;
  bool tf32 = false;   // WanVaePrecision::tf32(), of weights that are read in float32
  bool pairs = false;  // chunks have pairs of frames: see wan_vae_takes_pairs()
};

// Of the weights of a convolution, as it multiplies them, and its bias [out].
at::TensorOptions wan_vae_conv_options(const Weights& weights, bool tf32);
Tensor wan_vae_conv_bias(const Weights& weights, std::int64_t out, bool tf32);

// Whether a causal 3x3x3 convolution on a GPU is three in two dimensions and their sum, which is
// faster there than one in three dimensions at few channels and 16 bits. conv3d() of lib/ops goes
// before both.
bool wan_vae_splits_taps(std::int64_t out, std::int64_t in, at::ScalarType products);

// Whether a causal 3x3x3 convolution in conv3d() of lib/ops takes the frames of a chunk in pairs
// where it can, which is two thirds of the work. Its input comes from a norm.
bool wan_vae_takes_pairs(std::int64_t out, std::int64_t in);

// The last input frames of every temporal convolution of a pass over a clip, in the order in which
// they run: what a chunk of frames sees of the chunks before it. Bounded whatever the clip's
// length.
class WanVaeHistory {
 public:
  // `band`: the rows of the maps of this pass, where other ranks have the others.
  explicit WanVaeHistory(std::optional<WanVaeBand> band = {}) : band_(band) {}
  // `last`: no chunk follows, nothing is kept.
  void begin_chunk(bool last);
  bool first_chunk() const { return first_; }

  // Where other ranks have rows that a kernel of `k` rows reads.
  const WanVaeBand* band_of(std::int64_t k) const { return k > 1 && band_ ? &*band_ : nullptr; }

  // For the next convolution: unset room for a chunk of `sizes` [n, h, w, c] (the last n frames of
  // the result) behind the two frames before it, zeros where there are none. One frame with nothing
  // before it stays alone: WanVaeConv knows that zeros count for nothing.
  Tensor room_behind(at::IntArrayRef sizes, const at::TensorOptions& options);
  // Of what room_behind() returned, the frames of the chunk.
  static Tensor chunk_of(const Tensor& frames);
  // What room_behind() returned, filled. The next convolution's turn.
  void keep(const Tensor& frames);

  // For the next convolution, which takes a chunk and all that follow in pairs: the two frames of
  // `sizes` [2, h, w, c] before it, zeros where there are none. The last two of the chunk are to be
  // written there.
  Tensor before_pairs(at::IntArrayRef sizes, const at::TensorOptions& options);
  // That is done. The next convolution's turn.
  void keep_pairs();

  // For a convolution that sees one frame before the chunk: that frame (undefined in the first
  // chunk), and `frames`' last one for the next chunk. The next convolution's turn.
  Tensor exchange_last(const Tensor& frames);
  // For a convolution that sits this chunk out.
  void skip();

 private:
  Tensor& slot();  // of the next convolution
  std::vector<Tensor> slots_;
  std::size_t next_ = 0;
  bool started_ = false, first_ = false, last_ = false;
  std::optional<WanVaeBand> band_;
};

struct WanVaeConv {     // causal: kernels of three frames end at the frame that they make
  Tensor weight, bias;  // [out, in, t, k, k] in channels_last_3d, [out]
  Tensor pairs;  // of conv3d() with pairs, [out, in, 5, k, k], or undefined; `weight` lies in it
  std::vector<Tensor> taps;  // instead of `weight`: of each frame, [out, in, k, k] in channels_last
  bool in_kernel = false;    // by conv3d() of lib/ops, where the stride is 1
  static WanVaeConv load(const Weights& weights, std::int64_t out, std::int64_t in, std::int64_t t,
                         std::int64_t k, const WanVaeCompute& compute);
  void split_taps();  // `weight` becomes `taps`
  // x [n, h, w, in] of any dtype -> [n, h, w, out], padded by k / 2; for t = 3.
  Tensor forward(const Tensor& x, WanVaeHistory& history) const;
  // The same in two steps: where x goes, [n, h, w, in], and what is made of it.
  // In pairs, x is what a norm makes of pairs of frames: rms_norm_silu_pairs_out() of lib/ops.
  struct Room {
    Tensor frames;    // of WanVaeHistory::room_behind(), or [2 n, ...] in pairs; with a halo where
                      // `history` has a band
    Tensor x;         // in it
    Tensor before{};  // in pairs: of WanVaeHistory::before_pairs(), without a halo
  };
  Room room_for(at::IntArrayRef sizes, WanVaeHistory& history, bool in_pairs) const;
  // For a norm to fill.
  Room room_for(at::IntArrayRef sizes, WanVaeHistory& history) const {
    return room_for(sizes, history, pairs.defined() && sizes[0] % 2 == 0);
  }
  // -> what is to be summed: of each tap, or all at once.
  std::vector<Tensor> forward_filled(const Room& room, WanVaeHistory& history) const;
  // Whether a map [n, h, w, out] of that dtype can be added to the result on its way out.
  // add_filled() does this and returns the map's dtype; the result is rounded to the convolution's
  // dtype first.
  bool adds(at::ScalarType maps) const;
  Tensor add_filled(const Room& room, const Tensor& map, WanVaeHistory& history) const;
  // Every second window of frames [2 m + 1, h, w, in] -> [m, h, w, out]; not padded in time.
  Tensor forward_halved(const Tensor& frames) const;
  at::TensorOptions options() const { return bias.options(); }
  at::ScalarType dtype() const { return bias.scalar_type(); }

 private:
  std::int64_t kernel_rows() const { return taps.empty() ? weight.size(3) : taps[0].size(2); }
  // Halo and history. -> the rows by which the frames are to be padded above and below.
  std::int64_t pass_on(const Room& room, WanVaeHistory& history) const;
  std::vector<Tensor> convolve(const Tensor& frames, std::int64_t rows) const;
  Tensor convolve_in_kernel(const Room& room, std::int64_t rows, const Tensor& shortcut) const;
};

struct WanVaeSpatialConv {  // of each frame, 3x3
  Tensor weight, bias;      // [out, in, 3, 3] in channels_last, [out]
  static WanVaeSpatialConv load(const Weights& weights, std::int64_t out, std::int64_t in,
                                bool tf32);
  // [n, h, w, in] -> [n, h, w, out], padded by 1; at stride 2 not padded.
  Tensor forward(const Tensor& x, std::int64_t stride = 1) const;
  // x has its halo: [n, 1 + h + 1, w, in] -> [n, h, w, out].
  Tensor forward_band(const Tensor& x) const;
};

struct WanVaeLinear {   // a convolution with a kernel of 1
  Tensor weight, bias;  // [out, in], [out]
  // `dims`: of the checkpoint's weight, [out, in, 1, 1] or [out, in, 1, 1, 1].
  static WanVaeLinear load(const Weights& weights, std::int64_t out, std::int64_t in,
                           std::int64_t dims = 5);
  Tensor forward(const Tensor& x) const;  // [..., in] -> [..., out]
  // x [n, h, w, in]. Where it is float32 on a GPU and `products` has 16 bits, by
  // linear_in_parts() of lib/ops.
  Tensor forward(const Tensor& x, at::ScalarType products) const;
};

// A map that is still to be summed: `map`, of the maps' dtype (undefined: none), and what
// convolutions made. The next norm adds them as it reads them.
struct WanVaeSum {
  Tensor map;
  std::vector<Tensor> parts{};
  bool owned = false;  // nothing else reads `map`: the sum may take its place
  at::IntArrayRef sizes() const;
};
// The sum in `dtype`, that of maps or that of convolutions. It may be x.map itself, or lie there.
Tensor wan_vae_total(WanVaeSum x, at::ScalarType dtype, KernelPolicy kernels);

struct WanVaeNorm {  // x / max(|x|, 1e-12) * sqrt(c) * gamma over the channels
  Tensor gamma;      // [c]
  KernelPolicy kernels = KernelPolicy::automatic;
  // `dims`: of the checkpoint's gamma, [c, 1, 1] or [c, 1, 1, 1].
  static WanVaeNorm load(const Weights& weights, std::int64_t channels, KernelPolicy kernels,
                         std::int64_t dims = 4);
  Tensor forward(const Tensor& x) const;
  // room.x = silu(norm(x)), of x's sizes or in pairs, in the dtype of convolutions; x itself goes
  // to `sum` where that is defined.
  void silu_into(const WanVaeConv::Room& room, const Tensor& sum, const WanVaeSum& x) const;

 private:
  double eps() const;
};

// conv(silu(norm(x))): the norm writes where the convolution reads, behind its history. x is let go
// of before the convolution runs.
WanVaeSum wan_vae_norm_silu_conv(const WanVaeNorm& norm, const WanVaeConv& conv, WanVaeSum x,
                                 WanVaeHistory& history);

struct WanVaeResidualBlock {  // x + conv(silu(norm(conv(silu(norm(x))))))
  WanVaeNorm norm1, norm2;
  WanVaeConv conv1, conv2;
  std::optional<WanVaeLinear> shortcut;  // where the width changes
  static WanVaeResidualBlock load(const Weights& weights, const WanVaeBlockNames& names,
                                  std::int64_t in, std::int64_t out, const WanVaeCompute& compute);
  WanVaeSum forward(WanVaeSum x, WanVaeHistory& history) const;

 private:
  WanVaeSum begin(WanVaeSum& x, WanVaeHistory& history) const;  // up to the first convolution
};

struct WanVaeAttention {  // one head over the pixels of each frame
  WanVaeNorm norm;
  WanVaeLinear to_qkv, proj;
  at::ScalarType products = at::kFloat;  // of convolutions; what tensor cores read
  static WanVaeAttention load(const Weights& weights, std::int64_t channels,
                              const WanVaeCompute& compute);
  Tensor forward(const Tensor& x) const;
};

}  // namespace diptych
