
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "lib/base/error.h"
#include "lib/base/json_file.h"
#include "lib/base/json_numbers.h"
#include "lib/models/bagel/bagel.h"

namespace diptych {
namespace {

using Json = nlohmann::json;

constexpr const char* kTanhGelu = "gelu_pytorch_tanh";

// The official loader has both, whatever the file says.
constexpr QwenParts kQwenParts = {.attention_bias = true, .qk_norm = true};

// It also overrules these without a word. A file that says otherwise is of another model.
void require_official(const std::filesystem::path& path) {
  const Json json = read_json_object(path);
  for (const auto& [key, expected] :
       {std::pair{"qk_norm", true}, std::pair{"tie_word_embeddings", false}}) {
    const auto found = json.find(key);
    if (found == json.end() || found->is_null() || *found == expected) continue;
    throw InputError("{}: {}: found {}, expected {}, which is all this model has", path.string(),
                     key, found->dump(), expected);
  }
}

SiglipConfig load_siglip(const std::filesystem::path& path) {
  const Json json = read_json_object(path);
  // The sizes of the released model are no default for another one's.
  require_numbers(json,
                  {"hidden_size", "intermediate_size", "num_attention_heads", "num_hidden_layers",
                   "patch_size", "image_size"},
                  path);
  SiglipConfig c;
  const std::int64_t one = 1;
  read_number(json, "hidden_size", c.hidden_size, one, std::int64_t{1048576}, path);
  read_number(json, "intermediate_size", c.intermediate_size, one, std::int64_t{1048576}, path);
  read_number(json, "num_attention_heads", c.num_attention_heads, one, std::int64_t{1024}, path);
  read_number(json, "num_hidden_layers", c.num_hidden_layers, one, std::int64_t{1000}, path);
  read_number(json, "patch_size", c.patch_size, one, std::int64_t{1024}, path);
  read_number(json, "image_size", c.image_size, one, std::int64_t{65536}, path);
  read_number(json, "num_channels", c.num_channels, one, std::int64_t{64}, path);
  read_number(json, "layer_norm_eps", c.layer_norm_eps, 0.0, 1.0, path);
  if (c.hidden_size % c.num_attention_heads != 0) {
    throw InputError("{}: hidden_size {} does not divide into {} heads", path.string(),
                     c.hidden_size, c.num_attention_heads);
  }
  if (const auto act = json.find("hidden_act"); act != json.end() && *act != kTanhGelu) {
    throw InputError("{}: hidden_act: found {}, expected \"{}\"", path.string(), act->dump(),
                     kTanhGelu);
  }
  return c;
}

}  // namespace

BagelConfig BagelConfig::load(const std::filesystem::path& folder) {
  BagelConfig c;
  c.llm = QwenConfig::load(folder / "llm_config.json", kQwenParts);
  require_official(folder / "llm_config.json");
  c.vit = load_siglip(folder / "vit_config.json");
  const std::filesystem::path top = folder / "config.json";
  if (!std::filesystem::exists(top)) return c;  // the official code never reads it
  const Json json = read_json_object(top);
  const std::int64_t one = 1;
  read_number(json, "latent_patch_size", c.latent_patch_size, one, std::int64_t{64}, top);
  read_number(json, "vit_max_num_patch_per_side", c.vit_max_num_patch_per_side, one,
              std::int64_t{4096}, top);
  // By these the upstream model computes otherwise, though its inference never sets them so.
  if (const auto positions = json.find("interpolate_pos");
      positions != json.end() && *positions == true) {
    throw InputError("{}: interpolate_pos: found true, expected false", top.string());
  }
  if (const auto act = json.find("connector_act"); act != json.end() && *act != kTanhGelu) {
    throw InputError("{}: connector_act: found {}, expected \"{}\"", top.string(), act->dump(),
                     kTanhGelu);
  }
  if (const auto vae = json.find("vae_config"); vae != json.end() && vae->is_object()) {
    read_number(*vae, "z_channels", c.latent_channels, one, std::int64_t{4096}, top);
    read_number(*vae, "downsample", c.vae_downsample, one, std::int64_t{1024}, top);
  }
  return c;
}

}  // namespace diptych
