#include "lib/models/cosmos/config.h"

#include <algorithm>

#include "lib/base/error.h"
#include "lib/base/json_file.h"
#include "lib/base/json_numbers.h"

namespace diptych {
namespace {

using Json = nlohmann::json;
using Path = std::filesystem::path;

constexpr std::int64_t kOne = 1, kMostWidth = 1 << 20;

// Ranges are far beyond any real model's, and small enough that products of sizes cannot overflow.
void read_sizes(const Json& json, CosmosConfig& c, const Path& path) {
  read_number(json, "in_channels", c.in_channels, kOne, std::int64_t{4096}, path);
  read_number(json, "out_channels", c.out_channels, kOne, std::int64_t{4096}, path);
  read_number(json, "num_attention_heads", c.num_attention_heads, kOne, std::int64_t{1024}, path);
  // Below 12 an axis of rope has too few channels for its scale.
  read_number(json, "attention_head_dim", c.attention_head_dim, std::int64_t{12}, std::int64_t{256},
              path);
  read_number(json, "num_layers", c.num_layers, kOne, std::int64_t{1000}, path);
  read_number(json, "mlp_ratio", c.mlp_ratio, 0.1, 64.0, path);
  read_number(json, "text_embed_dim", c.text_embed_dim, kOne, kMostWidth, path);
  read_number(json, "adaln_lora_dim", c.adaln_lora_dim, kOne, kMostWidth, path);
}

// The key is missing, null or has the only value that this model is written for.
void require_value(const Json& json, const char* key, const Json& expected, const Path& path) {
  const auto found = json.find(key);
  if (found == json.end() || found->is_null() || *found == expected) return;
  throw InputError("{}: {}: found {}, expected {}", path.string(), key, shown_json(*found),
                   expected.dump());
}

void read_flag(const Json& json, const char* key, bool& value, const Path& path) {
  const auto found = json.find(key);
  if (found == json.end() || found->is_null()) return;
  if (!found->is_boolean()) {
    throw InputError("{}: {}: found {}, expected true or false", path.string(), key,
                     shown_json(*found));
  }
  value = found->get<bool>();
}

// Three numbers: of frames, height and width.
template <typename Number>
void read_axes(const Json& json, const char* key, std::array<Number, 3>& values, Number least,
               Number most, const Path& path) {
  const auto found = json.find(key);
  if (found == json.end() || found->is_null()) return;
  if (!found->is_array() || found->size() != 3) {
    throw InputError("{}: {}: found {}, expected three numbers", path.string(), key,
                     shown_json(*found));
  }
  for (std::size_t i = 0; i < 3; ++i) {
    const std::string place = std::string(key) + "[" + std::to_string(i) + "]";
    read_number(Json{{place, (*found)[i]}}, place.c_str(), values[i], least, most, path);
  }
}

// Parts of other models of the family.
void refuse_other_models(const Json& json, const Path& path) {
  require_value(json, "_class_name", "CosmosTransformer3DModel", path);
  require_value(json, "patch_size", Json::array({1, CosmosConfig::kPatch, CosmosConfig::kPatch}),
                path);
  require_value(json, "extra_pos_embed_type", nullptr, path);      // Cosmos 1
  require_value(json, "use_crossattn_projection", false, path);    // Predict2.5
  require_value(json, "img_context_dim_in", nullptr, path);        // Transfer2.5
  require_value(json, "controlnet_block_every_n", nullptr, path);  // Transfer2.5
}

void check_sizes(const CosmosConfig& c, const Path& path) {
  if (c.attention_head_dim % 2 != 0) {
    throw InputError("{}: attention_head_dim: found {}, expected an even number", path.string(),
                     c.attention_head_dim);
  }
  if (c.in_channels != c.out_channels && !c.takes_frames()) {
    throw InputError("{}: in_channels: found {}, expected out_channels, {}, or one more",
                     path.string(), c.in_channels, c.out_channels);
  }
  if (c.width() > kMostWidth) {
    throw InputError(
        "{}: num_attention_heads times attention_head_dim: {} is out of range, expected up to {}",
        path.string(), c.width(), kMostWidth);
  }
}

}  // namespace

CosmosConfig CosmosConfig::load(const Path& path) {
  const Json json = read_json_object(path);
  refuse_other_models(json, path);
  CosmosConfig c;
  read_sizes(json, c, path);
  read_axes(json, "max_size", c.max_size, CosmosConfig::kPatch, std::int64_t{65536}, path);
  read_axes(json, "rope_scale", c.rope_scale, 0.001, 1000.0, path);
  read_flag(json, "concat_padding_mask", c.concat_padding_mask, path);
  check_sizes(c, path);
  return c;
}

// diffusers' table of positions is as long as the longest axis.
std::int64_t CosmosConfig::most_positions() const {
  return std::max({max_size[0], max_size[1] / kPatch, max_size[2] / kPatch});
}

}  // namespace diptych
