// The vision tower of CLIP as Wan 2.1 I2V uses it (ViT-H/14): the rows that leave the second to
// last layer, the class row among them. Port of huggingface/transformers 4.57,
// models/clip/modeling_clip.py (CLIPVisionTransformer); specs: wan.md section 9.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string_view>
#include <vector>

#include "lib/attention/attention.h"
#include "lib/models/siglip/siglip.h"
#include "lib/tensor/tensor_names.h"
#include "lib/tensor/weights.h"

namespace diptych {

struct ClipVisionConfig {  // image_encoder/config.json's names; the values are ViT-H/14's
  std::int64_t hidden_size = 1280, intermediate_size = 5120, num_attention_heads = 16;
  std::int64_t num_hidden_layers = 32;  // the last one is not used
  std::int64_t image_size = 224, patch_size = 14, num_channels = 3;
  VisionGelu hidden_act = VisionGelu::exact;  // "gelu", or "quick_gelu"
  double layer_norm_eps = 1e-5;

  // Throws InputError naming file and key: for a missing size, a value out of range, sizes that do
  // not fit each other, and another activation.
  static ClipVisionConfig load(const std::filesystem::path& path);

  std::int64_t patches() const { return (image_size / patch_size) * (image_size / patch_size); }
  std::int64_t rows() const { return patches() + 1; }  // of a picture: 257
};

// Called with "clip_hidden00" (what enters the first layer), "clip_hidden01", ...
using ClipVisionObserver = std::function<void(std::string_view name, const Tensor& value)>;

struct ClipVision {
  ClipVisionConfig config;
  Tensor class_embedding;     // [hidden]
  Tensor patch_embedding;     // [hidden, channels * patch_size * patch_size]
  Tensor position_embedding;  // [rows(), hidden]
  SiglipNorm pre_layrnorm;    // the checkpoint's spelling
  std::vector<SiglipLayer> layers;

  // `weights`: the root of image_encoder. Throws as Weights::get. Call weights.require_all_read()
  // behind it.
  static ClipVision load(const Weights& weights, const ClipVisionConfig& config);
  // pixels [pictures, channels, image_size, image_size], normalised, any floating dtype and device
  // -> [pictures, rows(), hidden] in the model's dtype.
  Tensor forward(const Tensor& pixels, const AttentionBackend& attention,
                 const ClipVisionObserver& observer = {}) const;
};

// Every tensor of the checkpoint, those of the last layer among them.
std::vector<TensorShape> clip_vision_layout(const ClipVisionConfig& config);
// Checks the names and shapes of a tower's weights; reads none. Beside its layout there may be what
// whole CLIP models and older files hold. Throws as Weights::check and Weights::require_all_read.
void check_clip_vision_tensors(const Weights& weights, const ClipVisionConfig& config);
// Bytes of the weights that are kept, and the most that one forward of so many pictures holds at
// once beside them, without what the attention backend takes and an allocator adds.
std::int64_t clip_vision_weight_bytes(const ClipVisionConfig& config, at::ScalarType dtype);
std::int64_t clip_vision_bytes(const ClipVisionConfig& config, std::int64_t pictures,
                               at::ScalarType dtype);

}  // namespace diptych
