// The keys of later drafters: z-lab/dflash, tests/fixtures/dflash2-config.json; vLLM's
// speculators/algos.py and qwen3_dflash.py. specs: dflash.md section 2.3.
#include "lib/pipelines/qwen3_dflash/drafter_keys.h"

#include <algorithm>
#include <array>
#include <string>
#include <string_view>
#include <vector>

#include <fmt/ranges.h>

#include "lib/base/error.h"
#include "lib/base/json_file.h"

namespace diptych {
namespace {

using Json = nlohmann::json;

constexpr std::string_view kKind = "DFlashDraftModel";
constexpr auto kInner = std::to_array<std::string_view>({"mask_token_id", "target_layer_ids"});

// Of config.json itself; what it means where it is not this value.
struct OtherKey {
  std::string_view key;
  Json allowed;  // null: none
  std::string_view kind;
};

std::vector<OtherKey> other_keys() {
  return {{"transformer_layer_config", nullptr, "of the speculators format"},
          {"speculators_config", nullptr, "of the speculators format"},
          {"draft_vocab_size", nullptr, "of a drafter with a vocabulary of its own"},
          {"is_causal", false, "of a causal drafter"},
          {"use_sliding_window", false, "of a drafter with a sliding window"},
          {"final_logit_softcapping", nullptr, "of a later DFlash"}};
}

void refuse(const std::filesystem::path& config, std::string_view key, const Json& found,
            std::string_view kind, std::string_view expected) {
  throw InputError("{}: {}: found {}, {}, which this version does not have; expected {}",
                   config.string(), key, shown_json(found), kind, expected);
}

void check_architecture(const Json& json, const std::filesystem::path& config) {
  const auto found = json.find("architectures");
  if (found == json.end() || !found->is_array()) return;
  const bool own = std::ranges::find(*found, kKind) != found->end();
  if (!own) refuse(config, "architectures", *found, "another kind of model", kKind);
}

void check_outer(const Json& json, const std::filesystem::path& config) {
  for (const auto& [key, allowed, kind] : other_keys()) {
    const auto found = json.find(key);
    if (found == json.end() || found->is_null() || *found == allowed) continue;
    refuse(config, key, *found, kind, allowed.is_null() ? "none" : allowed.dump());
  }
  const auto layers = json.find("layer_types");
  if (layers == json.end() || !layers->is_array()) return;
  for (const Json& type : *layers) {
    if (type != "full_attention")
      refuse(config, "layer_types", type, "of a later DFlash", "full_attention");
  }
}

void check_inner(const Json& json, const std::filesystem::path& config) {
  const auto inner = json.find("dflash_config");
  if (inner == json.end() || !inner->is_object()) return;
  std::vector<std::string> unknown;
  for (const auto& [key, value] : inner->items()) {
    const bool off = (key == "causal" || key == "use_swa") && value == false;
    if (!off && std::ranges::find(kInner, key) == kInner.end()) unknown.push_back(key);
  }
  if (unknown.empty()) return;
  throw InputError(
      "{}: dflash_config has {}, of a later DFlash, which this version does not have; expected {} "
      "alone",
      config.string(), fmt::join(unknown, ", "), fmt::join(kInner, " and "));
}

}  // namespace

void require_dflash_keys(const std::filesystem::path& config) {
  const Json json = read_json_object(config);
  check_inner(json, config);  // names the most
  check_architecture(json, config);
  check_outer(json, config);
}

}  // namespace diptych
