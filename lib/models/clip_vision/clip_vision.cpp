#include "lib/models/clip_vision/clip_vision.h"

#include <algorithm>

#include <fmt/format.h>

#include "lib/base/error.h"
#include "lib/base/interrupt.h"
#include "lib/base/json_file.h"
#include "lib/base/json_numbers.h"

namespace diptych {
namespace {

using Json = nlohmann::json;
using Path = std::filesystem::path;

VisionGelu read_activation(const Json& json, const Path& path) {
  // A file without the key means what transformers makes of it.
  const Json found = json.value("hidden_act", Json("quick_gelu"));
  if (found == "gelu") return VisionGelu::exact;
  if (found == "quick_gelu") return VisionGelu::quick;
  throw InputError("{}: hidden_act: found {}, expected \"gelu\" or \"quick_gelu\"", path.string(),
                   shown_json(found));
}

void add_layer(std::vector<TensorShape>& tensors, const std::string& name,
               const ClipVisionConfig& c) {
  const std::int64_t hidden = c.hidden_size, inner = c.intermediate_size;
  const auto add = [&](const std::string& module, std::vector<std::int64_t> shape) {
    const std::int64_t outputs = shape.front();
    tensors.push_back({name + module + ".weight", std::move(shape)});
    tensors.push_back({name + module + ".bias", {outputs}});
  };
  for (const char* projection : {"k_proj", "v_proj", "q_proj", "out_proj"})
    add(std::string("self_attn.") + projection, {hidden, hidden});
  add("layer_norm1", {hidden});
  add("mlp.fc1", {inner, hidden});
  add("mlp.fc2", {hidden, inner});
  add("layer_norm2", {hidden});
}

// The tensors of the tower up to a layer.
std::vector<TensorShape> layout_up_to(const ClipVisionConfig& c, std::int64_t layers) {
  const std::string model = "vision_model.";
  const std::int64_t hidden = c.hidden_size, side = c.patch_size;
  std::vector<TensorShape> tensors = {
      {model + "embeddings.class_embedding", {hidden}},
      {model + "embeddings.patch_embedding.weight", {hidden, c.num_channels, side, side}},
      {model + "embeddings.position_embedding.weight", {c.rows(), hidden}},
      {model + "pre_layrnorm.weight", {hidden}},
      {model + "pre_layrnorm.bias", {hidden}}};
  for (std::int64_t i = 0; i < layers; ++i)
    add_layer(tensors, fmt::format("{}encoder.layers.{}.", model, i), c);
  return tensors;
}

// A table of 0, 1, 2, ... that older files hold, and the projection of whole CLIP models.
void read_over_foreign(const Weights& weights) {
  if (weights.is_dummy()) return;
  const auto read_over = [](const Weights& of, const char* name) {
    if (of.contains(name)) of.check(name, of.shape(name));
  };
  read_over(weights.as(at::kLong), "vision_model.embeddings.position_ids");
  read_over(weights, "visual_projection.weight");
}

// Marks what the checkpoint holds and nothing needs as read.
void read_over_unused(const Weights& weights, const ClipVisionConfig& c) {
  const std::string last = fmt::format("vision_model.encoder.layers.{}.", c.num_hidden_layers - 1);
  for (const TensorShape& tensor : clip_vision_layout(c)) {
    if (tensor.name.starts_with(last) || tensor.name.starts_with("vision_model.post_layernorm"))
      weights.check(tensor.name, tensor.shape);
  }
  read_over_foreign(weights);
}

}  // namespace

ClipVisionConfig ClipVisionConfig::load(const Path& path) {
  const Json json = read_json_object(path);
  // The sizes of one model are no default for another one's.
  require_numbers(json,
                  {"hidden_size", "intermediate_size", "num_attention_heads", "num_hidden_layers",
                   "image_size", "patch_size"},
                  path);
  ClipVisionConfig c;
  const std::int64_t one = 1, wide = 1 << 20;
  read_number(json, "hidden_size", c.hidden_size, one, wide, path);
  read_number(json, "intermediate_size", c.intermediate_size, one, wide, path);
  read_number(json, "num_attention_heads", c.num_attention_heads, one, std::int64_t{1024}, path);
  read_number(json, "num_hidden_layers", c.num_hidden_layers, std::int64_t{2}, std::int64_t{1000},
              path);
  read_number(json, "image_size", c.image_size, one, std::int64_t{16384}, path);
  read_number(json, "patch_size", c.patch_size, one, std::int64_t{1024}, path);
  read_number(json, "num_channels", c.num_channels, std::int64_t{3}, std::int64_t{3}, path);
  read_number(json, "layer_norm_eps", c.layer_norm_eps, 0.0, 1.0, path);
  c.hidden_act = read_activation(json, path);
  if (c.hidden_size % c.num_attention_heads != 0) {
    throw InputError("{}: hidden_size {} does not divide into {} heads", path.string(),
                     c.hidden_size, c.num_attention_heads);
  }
  if (c.patch_size > c.image_size) {
    throw InputError("{}: patch_size: found {}, expected at most image_size, {}", path.string(),
                     c.patch_size, c.image_size);
  }
  return c;
}

ClipVision ClipVision::load(const Weights& weights, const ClipVisionConfig& c) {
  const std::int64_t hidden = c.hidden_size, side = c.patch_size;
  const Weights model = weights.scope("vision_model"), embeddings = model.scope("embeddings");
  ClipVision m;
  m.config = c;
  m.class_embedding = embeddings.get("class_embedding", {hidden});
  m.patch_embedding =
      embeddings.get("patch_embedding.weight", {hidden, c.num_channels, side, side}).flatten(1);
  m.position_embedding = embeddings.get("position_embedding.weight", {c.rows(), hidden});
  m.pre_layrnorm = SiglipNorm::load(model.scope("pre_layrnorm"), hidden);
  for (std::int64_t i = 0; i + 1 < c.num_hidden_layers; ++i) {
    m.layers.push_back(SiglipLayer::load(model.scope(fmt::format("encoder.layers.{}", i)), hidden,
                                         c.intermediate_size));
  }
  read_over_unused(weights, c);
  return m;
}

Tensor ClipVision::forward(const Tensor& pixels, const AttentionBackend& attention,
                           const ClipVisionObserver& observer) const {
  const std::int64_t size = config.image_size, side = config.patch_size, grid = size / side;
  TORCH_CHECK(pixels.dim() == 4 && pixels.size(0) > 0 && pixels.size(1) == config.num_channels &&
                  pixels.size(2) == size && pixels.size(3) == size,
              "[clip_vision] pixels ", pixels.sizes(), ", expected [pictures, ",
              config.num_channels, ", ", size, ", ", size, "]");
  const std::int64_t pictures = pixels.size(0), hidden = config.hidden_size;
  // As a convolution without padding: what is left over behind the last patch is not seen.
  const Tensor patches = pixels.to(patch_embedding.options())
                             .narrow(2, 0, grid * side)
                             .narrow(3, 0, grid * side)
                             .reshape({pictures, config.num_channels, grid, side, grid, side})
                             .permute({0, 2, 4, 1, 3, 5})
                             .reshape({pictures, grid * grid, patch_embedding.size(1)});
  Tensor x = at::cat(
      {class_embedding.expand({pictures, 1, hidden}), at::linear(patches, patch_embedding)}, 1);
  x = pre_layrnorm.forward((x + position_embedding).flatten(0, 1), config.layer_norm_eps);

  const std::vector<std::int64_t> rows(static_cast<std::size_t>(pictures), config.rows());
  const auto lengths = AttentionLengths::make(rows, rows, config.rows(), x.device());
  const SiglipPass pass = {config.num_attention_heads, config.layer_norm_eps, config.hidden_act,
                           lengths, attention};
  const auto see = [&](std::size_t layer) {
    if (observer)
      observer(fmt::format("clip_hidden{:02}", layer), x.view({pictures, config.rows(), hidden}));
  };
  see(0);
  for (std::size_t i = 0; i < layers.size(); ++i) {
    if (x.device().is_cpu()) check_interrupted();  // on a GPU the layers are only launched here
    x = layers[i].forward(x, pass);
    see(i + 1);
  }
  return x.view({pictures, config.rows(), hidden});
}

std::vector<TensorShape> clip_vision_layout(const ClipVisionConfig& c) {
  std::vector<TensorShape> tensors = layout_up_to(c, c.num_hidden_layers);
  tensors.push_back({"vision_model.post_layernorm.weight", {c.hidden_size}});
  tensors.push_back({"vision_model.post_layernorm.bias", {c.hidden_size}});
  return tensors;
}

void check_clip_vision_tensors(const Weights& weights, const ClipVisionConfig& c) {
  for (const auto& [name, shape] : clip_vision_layout(c)) weights.check(name, shape);
  read_over_foreign(weights);
  weights.require_all_read();
}

std::int64_t clip_vision_weight_bytes(const ClipVisionConfig& c, at::ScalarType dtype) {
  std::int64_t bytes = 0;
  for (const TensorShape& tensor : layout_up_to(c, c.num_hidden_layers - 1)) {
    std::int64_t count = 1;
    for (const std::int64_t size : tensor.shape) count *= size;
    const bool norm = tensor.name.find("norm") != std::string::npos;  // kept in float32
    bytes += count * static_cast<std::int64_t>(c10::elementSize(norm ? at::kFloat : dtype));
  }
  return bytes;
}

std::int64_t clip_vision_bytes(const ClipVisionConfig& c, std::int64_t pictures,
                               at::ScalarType dtype) {
  const auto element = static_cast<std::int64_t>(c10::elementSize(dtype));
  const std::int64_t rows = pictures * c.rows(), hidden = c.hidden_size;
  // Beside x and the sum: the wide rows before and behind their activation, and one more where it
  // is written out; or qkv and what is attended; or a norm in float32, its input and result.
  const std::int64_t wide = (c.hidden_act == VisionGelu::quick ? 4 : 2) * c.intermediate_size;
  const std::int64_t norm = 2 * hidden * static_cast<std::int64_t>(sizeof(float)) / element;
  return rows * (2 * hidden + std::max({wide, 5 * hidden, norm + hidden})) * element;
}

}  // namespace diptych
