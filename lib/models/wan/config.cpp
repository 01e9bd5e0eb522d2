#include "lib/models/wan/config.h"

#include "lib/base/error.h"
#include "lib/base/json_file.h"
#include "lib/base/json_numbers.h"

namespace diptych {
namespace {

using Json = nlohmann::json;
using Path = std::filesystem::path;

constexpr std::int64_t kOne = 1, kMostWidth = 1 << 20;

// Ranges are far beyond any real model's, and small enough that products of sizes cannot overflow.
void read_sizes(const Json& json, WanConfig& c, const Path& path) {
  read_number(json, "num_attention_heads", c.num_attention_heads, kOne, std::int64_t{1024}, path);
  read_number(json, "attention_head_dim", c.attention_head_dim, kOne, std::int64_t{1024}, path);
  read_number(json, "in_channels", c.in_channels, kOne, std::int64_t{4096}, path);
  read_number(json, "out_channels", c.out_channels, kOne, std::int64_t{4096}, path);
  read_number(json, "text_dim", c.text_dim, kOne, kMostWidth, path);
  read_number(json, "freq_dim", c.freq_dim, kOne, kMostWidth, path);
  read_number(json, "ffn_dim", c.ffn_dim, kOne, kMostWidth, path);
  read_number(json, "num_layers", c.num_layers, kOne, std::int64_t{1000}, path);
  read_number(json, "rope_max_seq_len", c.rope_max_seq_len, kOne, std::int64_t{65536}, path);
  read_number(json, "eps", c.eps, 0.0, 1.0, path);
}

std::optional<std::int64_t> read_optional(const Json& json, const char* key, const Path& path) {
  std::int64_t value = 0;
  read_number(json, key, value, kOne, kMostWidth, path);
  return value == 0 ? std::nullopt : std::optional(value);
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

void read_image_sizes(const Json& json, WanConfig& c, const Path& path) {
  c.image_dim = read_optional(json, "image_dim", path);
  c.pos_embed_seq_len = read_optional(json, "pos_embed_seq_len", path);
  // Rows of an image are brought to the width of the model before they become keys.
  const auto added = read_optional(json, "added_kv_proj_dim", path);
  if (c.image_dim.has_value() != added.has_value() || (added && *added != c.width())) {
    throw InputError("{}: added_kv_proj_dim: found {}, expected {}", path.string(),
                     added ? std::to_string(*added) : "none",
                     c.image_dim ? std::to_string(c.width()) + ", the width of the model"
                                 : "none, as there is no image_dim");
  }
  if (c.pos_embed_seq_len && !c.image_dim) {
    throw InputError("{}: pos_embed_seq_len: found {}, expected none, as there is no image_dim",
                     path.string(), *c.pos_embed_seq_len);
  }
}

void check_even(const char* key, std::int64_t value, const Path& path) {
  if (value % 2 == 0) return;
  throw InputError("{}: {}: found {}, expected an even number", path.string(), key, value);
}

}  // namespace

WanConfig WanConfig::load(const Path& path) {
  const Json json = read_json_object(path);
  require_value(json, "_class_name", "WanTransformer3DModel", path);
  require_value(json, "qk_norm", "rms_norm_across_heads", path);
  require_value(json, "patch_size", Json::array({1, kPatch, kPatch}), path);
  WanConfig c;
  read_sizes(json, c, path);
  check_even("attention_head_dim", c.attention_head_dim, path);
  check_even("freq_dim", c.freq_dim, path);
  read_flag(json, "cross_attn_norm", c.cross_attn_norm, path);
  read_image_sizes(json, c, path);
  if (c.width() > kMostWidth) {
    throw InputError(
        "{}: num_attention_heads times attention_head_dim: {} is out of range, "
        "expected up to {}",
        path.string(), c.width(), kMostWidth);
  }
  return c;
}

}  // namespace diptych
