// The vision transformer of BAGEL: SigLIP over the patches of one picture at its own size and
// aspect ratio (NaViT), learned positions, full attention.
// Port of ByteDance-Seed/Bagel @056b5fd, modeling/bagel/siglip_navit.py with rope = false; specs:
// bagel.md sections 1.2, 3.6, 4 and 12.
#pragma once

#include <cstdint>
#include <functional>
#include <string_view>
#include <vector>

#include "lib/attention/attention.h"
#include "lib/tensor/weights.h"

namespace diptych {

struct SiglipConfig {  // vit_config.json, its names
  std::int64_t hidden_size = 1152, intermediate_size = 4304, num_attention_heads = 16;
  std::int64_t num_hidden_layers = 27;  // the checkpoint holds, and the model uses, one fewer
  std::int64_t patch_size = 14, image_size = 980, num_channels = 3;
  double layer_norm_eps = 1e-6;

  std::int64_t layers() const { return num_hidden_layers - 1; }
  std::int64_t side() const { return image_size / patch_size; }  // of the square position table
  std::int64_t patch_width() const { return patch_size * patch_size * num_channels; }  // 588
  std::int64_t head_dim() const { return hidden_size / num_attention_heads; }
};

struct SiglipNorm {     // LayerNorm in float32 whatever the rows' dtype, as under CUDA autocast
  Tensor weight, bias;  // float32 [hidden]; their values are the model dtype's
  static SiglipNorm load(const Weights& weights, std::int64_t hidden);
  Tensor forward(const Tensor& x, double eps) const;  // in x's dtype
};

enum class VisionGelu {
  tanh,   // approximated
  exact,  // by the error function
  quick,  // x * sigmoid(1.702 x)
};

// What the layers of one pass share. The rows of each picture see each other.
struct SiglipPass {
  std::int64_t heads;
  double eps;
  VisionGelu gelu;
  const AttentionLengths& lengths;  // samples (pictures) of equal lengths
  const AttentionBackend& attention;
};

struct SiglipLayer {  // of CLIP's vision tower, too
  SiglipNorm layer_norm1, layer_norm2;
  Tensor qkv_proj, qkv_bias;  // [3 * hidden, hidden], [3 * hidden]: q, k and v packed
  Tensor out_proj, out_bias;  // [hidden, hidden], [hidden]
  Tensor fc1, fc1_bias;       // [intermediate, hidden], [intermediate]
  Tensor fc2, fc2_bias;       // [hidden, intermediate], [hidden]
  static SiglipLayer load(const Weights& weights, std::int64_t hidden, std::int64_t intermediate);
  // x [rows of all pictures, hidden] -> the same
  Tensor forward(const Tensor& x, const SiglipPass& pass) const;
};

// Called with the names of the golden data: "vit.embed", "vit.layerLL.hidden",
// "vit.post_layernorm".
using SiglipObserver = std::function<void(std::string_view name, const Tensor& value)>;

struct Siglip {
  SiglipConfig config;
  Tensor patch_embedding, patch_bias;  // [hidden, 588], [hidden]
  Tensor position_embedding;           // [side * side, hidden]
  std::vector<SiglipLayer> layers;
  SiglipNorm post_layernorm;

  // `weights`: scope "vit_model.vision_model". Throws as Weights::get.
  static Siglip load(const Weights& weights, const SiglipConfig& config);

  // One picture: patches [n, 588] in the model's dtype, position_ids int64 [n] on any device, rows
  // of the position table -> [n, hidden], after post_layernorm, in the model's dtype.
  Tensor forward(const Tensor& patches, const Tensor& position_ids,
                 const AttentionBackend& attention, const SiglipObserver& observer = {}) const;
};

// image [1, channels, h * patch, w * patch] -> [h * w, patch * patch * channels]: rows in row-major
// order, columns (row in the patch, column in the patch, channel).
Tensor patchify(const Tensor& image, std::int64_t patch);
// Rows of the position table for h x w patches in row-major order, int64 [h * w], CPU: the
// "extrapolate" rule, y * side + x. Throws InputError for more patches than the table has a side.
Tensor siglip_position_ids(std::int64_t h, std::int64_t w, const SiglipConfig& config);

}  // namespace diptych
