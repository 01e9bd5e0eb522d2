#include "lib/models/block_drafter/config.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <string_view>

#include "lib/base/error.h"
#include "lib/base/json_file.h"
#include "lib/base/json_numbers.h"

namespace diptych {
namespace {

using Json = nlohmann::json;
namespace fs = std::filesystem;

constexpr QwenParts kParts = {.attention_bias = false, .qk_norm = true};

// What makes a config one of a drafter that is not in this version, and what it is then.
struct Variant {
  const char* key;
  const char* kind;
};
constexpr std::array kVariants = {
    Variant{"transformer_layer_config", "the \"speculators\" layout"},
    Variant{"draft_vocab_size", "a vocabulary of the drafter's own"},
    Variant{"selector_rank", "a successor of DFlash"},
    Variant{"conv_group_size", "a successor of DFlash"},
};

[[noreturn]] void refuse(const fs::path& path, std::string_view key, const Json& found,
                         std::string_view expected) {
  throw InputError("{}: {}: found {}, expected {}", path.string(), key, shown_json(found),
                   expected);
}

void refuse_variants(const Json& json, std::string_view prefix, const fs::path& path) {
  for (const Variant& variant : kVariants) {
    const auto found = json.find(variant.key);
    if (found == json.end() || found->is_null()) continue;
    refuse(path, fmt::format("{}{}", prefix, variant.key), *found,
           fmt::format("no such key: {} is not in this version", variant.kind));
  }
}

void check_attention(const Json& json, const fs::path& path) {
  const auto types = json.find("layer_types");
  if (types == json.end() || types->is_null()) return;
  const auto full = [](const Json& type) { return type == "full_attention"; };
  if (!types->is_array() || !std::ranges::all_of(*types, full))
    refuse(path, "layer_types", *types, "\"full_attention\" alone");
}

// What other kinds of drafters say at the top. An absent key is as good as the right one.
void check_kind(const Json& json, const fs::path& path) {
  constexpr const char* kArchitecture = "DFlashDraftModel";
  const auto types = json.find("architectures");
  if (types != json.end() && !types->is_null() &&
      (!types->is_array() || std::ranges::find(*types, kArchitecture) == types->end()))
    refuse(path, "architectures", *types, fmt::format("\"{}\"", kArchitecture));
  for (const char* key : {"is_causal", "attention_sink_bias"}) {
    const auto found = json.find(key);
    if (found != json.end() && *found != false && !found->is_null())
      refuse(path, key, *found, "false");
  }
}

// Of "dflash_config": no key may be there that asks for something else than is done here.
void check_own_keys(const Json& own, const fs::path& path) {
  refuse_variants(own, "dflash_config.", path);
  for (const auto& [key, value] : own.items()) {
    if (key == "mask_token_id" || key == "target_layer_ids") continue;
    const std::string full = fmt::format("dflash_config.{}", key);
    if (key != "causal" && key != "use_swa")
      refuse(path, full, value, "mask_token_id and target_layer_ids alone");
    if (value != false && !value.is_null()) refuse(path, full, value, "false");
  }
}

const Json& own_keys(const Json& json, const fs::path& path) {
  const auto own = json.find("dflash_config");
  if (own == json.end() || !own->is_object()) {
    throw InputError("{}: dflash_config: found {}, expected the object of a DFlash drafter",
                     path.string(), own == json.end() ? "none" : shown_json(*own));
  }
  return *own;
}

std::int64_t read_mask_id(const Json& own, const fs::path& path) {
  const auto found = own.find("mask_token_id");
  const Json id = found == own.end() ? Json() : *found;
  if (!id.is_number_integer() || id < 0 || id >= 16777216)
    refuse(path, "dflash_config.mask_token_id", id, "an id of the target's vocabulary");
  return id.get<std::int64_t>();
}

std::vector<std::int64_t> read_target_layers(const Json& own, const BlockDrafterConfig& c) {
  const auto found = own.find("target_layer_ids");
  const Json ids =
      found == own.end() || found->is_null()
          ? Json(default_target_layers(c.num_target_layers, c.decoder.num_hidden_layers))
          : *found;
  const auto is_layer = [&](const Json& id) {
    return id.is_number_integer() && id >= 0 && id < c.num_target_layers;
  };
  if (!ids.is_array() || ids.empty() || ids.size() > 1000 || !std::ranges::all_of(ids, is_layer)) {
    refuse(c.file, "dflash_config.target_layer_ids", ids,
           fmt::format("a list of layers from 0 to {}", c.num_target_layers - 1));
  }
  return ids.get<std::vector<std::int64_t>>();
}

void check_fits(const BlockDrafterConfig& c, const QwenConfig& target) {
  const auto check = [&](const char* key, std::int64_t found, std::int64_t expected) {
    if (found == expected) return;
    throw InputError("{}: {}: found {}, expected {} as in the target", c.file.string(), key, found,
                     expected);
  };
  check("hidden_size", c.decoder.hidden_size, target.hidden_size);
  check("num_target_layers", c.num_target_layers, target.num_hidden_layers);
  if (c.mask_token_id >= target.vocab_size) {
    throw InputError(
        "{}: dflash_config.mask_token_id: found {}, expected an id below the target's vocab_size "
        "{}",
        c.file.string(), c.mask_token_id, target.vocab_size);
  }
}

// A file beside config.json that some drafters keep their mask's embedding in.
void refuse_mask_file(const fs::path& path) {
  const fs::path file = path.parent_path() / "mask_embedding.pt";
  if (fs::exists(file)) {
    throw InputError("{}: found a mask embedding, expected a row of the target's embed_tokens",
                     file.string());
  }
}

}  // namespace

std::vector<std::int64_t> default_target_layers(std::int64_t target_layers,
                                                std::int64_t drafter_layers) {
  if (drafter_layers == 1) return {target_layers / 2};
  std::vector<std::int64_t> layers;
  const double span = static_cast<double>(target_layers - 4);
  for (std::int64_t i = 0; i < drafter_layers; ++i) {
    const double place = static_cast<double>(i) * span / static_cast<double>(drafter_layers - 1);
    layers.push_back(std::lrint(1 + place));  // half to even, as Python's round()
  }
  return layers;
}

BlockDrafterConfig BlockDrafterConfig::load(const fs::path& path, const QwenConfig& target) {
  const Json json = read_json_object(path);
  refuse_variants(json, "", path);
  check_attention(json, path);
  check_kind(json, path);
  const Json& own = own_keys(json, path);
  check_own_keys(own, path);
  refuse_mask_file(path);
  require_numbers(json, {"block_size", "num_target_layers"}, path);
  BlockDrafterConfig c;
  c.file = path;
  c.decoder = QwenConfig::load(path, kParts);
  read_number(json, "block_size", c.block_size, std::int64_t{1}, std::int64_t{1024}, path);
  read_number(json, "num_target_layers", c.num_target_layers, std::int64_t{1}, std::int64_t{1000},
              path);
  c.mask_token_id = read_mask_id(own, path);
  c.target_layer_ids = read_target_layers(own, c);
  check_fits(c, target);
  return c;
}

}  // namespace diptych
