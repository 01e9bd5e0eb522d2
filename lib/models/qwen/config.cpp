#include "lib/models/qwen/config.h"

#include <algorithm>
#include <numeric>

#include "lib/base/error.h"
#include "lib/base/json_file.h"
#include "lib/base/json_numbers.h"

namespace diptych {
namespace {

using Json = nlohmann::json;

// Ranges are far beyond any real model's, and small enough that products of sizes cannot overflow.
void read_sizes(const Json& json, QwenConfig& c, const std::filesystem::path& path) {
  const std::int64_t one = 1;
  read_number(json, "hidden_size", c.hidden_size, one, std::int64_t{1048576}, path);
  read_number(json, "num_hidden_layers", c.num_hidden_layers, one, std::int64_t{1000}, path);
  read_number(json, "num_attention_heads", c.num_attention_heads, one, std::int64_t{1024}, path);
  read_number(json, "num_key_value_heads", c.num_key_value_heads, one, std::int64_t{1024}, path);
  read_number(json, "intermediate_size", c.intermediate_size, one, std::int64_t{1048576}, path);
  read_number(json, "vocab_size", c.vocab_size, one, std::int64_t{16777216}, path);
  read_number(json, "max_position_embeddings", c.max_position_embeddings, one,
              std::int64_t{16777216}, path);
  read_number(json, "rope_theta", c.rope_theta, 1.0, 1e12, path);
  read_number(json, "rms_norm_eps", c.rms_norm_eps, 0.0, 1.0, path);
}

void read_head_dim(const Json& json, QwenConfig& c, const std::filesystem::path& path) {
  c.head_dim = 0;
  read_number(json, "head_dim", c.head_dim, std::int64_t{1}, std::int64_t{65536}, path);
  if (c.head_dim == 0) {
    c.head_dim = c.hidden_size / c.num_attention_heads;
    if (c.hidden_size % c.num_attention_heads == 0 && c.head_dim % 2 == 0) return;
    throw InputError("{}: hidden_size {} does not divide into {} heads of even size", path.string(),
                     c.hidden_size, c.num_attention_heads);
  }
  if (c.head_dim % 2 != 0) {
    throw InputError("{}: head_dim: found {}, expected an even number", path.string(), c.head_dim);
  }
}

// As transformers 5 writes it. Any other key scales positions in a way that is not here.
void read_rope_parameters(const Json& json, QwenConfig& c, const std::filesystem::path& path) {
  const auto rope = json.find("rope_parameters");
  if (rope == json.end() || rope->is_null()) return;
  if (!rope->is_object()) {
    throw InputError("{}: rope_parameters: found {}, expected an object", path.string(),
                     shown_json(*rope));
  }
  for (const auto& [key, value] : rope->items()) {
    if (key == "rope_theta" || (key == "rope_type" && value == "default")) continue;
    throw InputError(
        "{}: rope_parameters.{}: found {}, expected rope_theta and a rope_type \"default\" alone",
        path.string(), key, shown_json(value));
  }
  read_number(*rope, "rope_theta", c.rope_theta, 1.0, 1e12, path);
}

// The section cuts a head into runs of angles; nothing else is scaled.
void check_only_mrope(const Json& json, const std::filesystem::path& path) {
  const auto scaling = json.find("rope_scaling");
  if (scaling == json.end() || !scaling->is_object()) return;
  for (const auto& [key, value] : scaling->items()) {
    const bool names_kind = key == "type" || key == "rope_type";
    if (key == "mrope_section" || (names_kind && (value == "mrope" || value == "default")) ||
        (key == "mrope_interleaved" && value == false))
      continue;
    throw InputError("{}: rope_scaling.{}: found {}, expected an mrope_section alone",
                     path.string(), key, value.dump());
  }
}

std::vector<std::int64_t> read_mrope_section(const Json& json, std::int64_t head_dim,
                                             const std::filesystem::path& path) {
  const auto scaling = json.find("rope_scaling");
  const Json section = scaling != json.end() && scaling->is_object()
                           ? scaling->value("mrope_section", Json())
                           : Json();
  const bool whole = section.is_array() && section.size() == 3 &&
                     std::ranges::all_of(section, [](const Json& part) {
                       return part.is_number_unsigned() && part.get<std::uint64_t>() <= 65536;
                     });
  std::vector<std::int64_t> parts;
  if (whole) parts = section.get<std::vector<std::int64_t>>();
  if (!whole || std::accumulate(parts.begin(), parts.end(), std::int64_t{0}) != head_dim / 2) {
    throw InputError(
        "{}: rope_scaling.mrope_section: found {}, expected three numbers with the sum {}, half "
        "of head_dim",
        path.string(), section.is_null() ? "none" : section.dump(), head_dim / 2);
  }
  return parts;
}

void check_parts(const Json& json, const QwenParts& parts, const std::filesystem::path& path) {
  if (const auto act = json.find("hidden_act"); act != json.end() && *act != "silu") {
    throw InputError("{}: hidden_act: found {}, expected \"silu\"", path.string(), act->dump());
  }
  if (const auto window = json.find("use_sliding_window");
      window != json.end() && *window == true) {
    throw InputError("{}: use_sliding_window: found true, expected false", path.string());
  }
  if (const auto scaling = json.find("rope_scaling");
      !parts.mrope && scaling != json.end() && !scaling->is_null()) {
    throw InputError("{}: rope_scaling: found {}, expected none", path.string(), scaling->dump());
  }
  if (const auto bias = json.find("attention_bias");
      !parts.attention_bias && bias != json.end() && *bias == true) {
    throw InputError("{}: attention_bias: found true, expected false", path.string());
  }
}

}  // namespace

QwenConfig QwenConfig::load(const std::filesystem::path& path, const QwenParts& parts) {
  const Json json = read_json_object(path);
  // The sizes of one model are no default for another one's.
  require_numbers(json,
                  {"hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads",
                   "intermediate_size", "vocab_size"},
                  path);
  QwenConfig c;
  read_sizes(json, c, path);
  read_rope_parameters(json, c, path);
  read_head_dim(json, c, path);
  if (c.num_attention_heads % c.num_key_value_heads != 0) {
    throw InputError("{}: num_attention_heads {} is no multiple of num_key_value_heads {}",
                     path.string(), c.num_attention_heads, c.num_key_value_heads);
  }
  check_parts(json, parts, path);
  if (parts.mrope) {
    check_only_mrope(json, path);
    c.mrope_section = read_mrope_section(json, c.head_dim, path);
  }
  c.attention_bias = parts.attention_bias;
  c.qk_norm = parts.qk_norm;
  return c;
}

}  // namespace diptych
