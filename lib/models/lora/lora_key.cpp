#include "lib/models/lora/lora_key.h"

#include <algorithm>
#include <array>

namespace diptych {
namespace {

struct Suffix {
  std::string_view text;
  LoraTensor kind = LoraTensor::other;
  std::string_view form = {};
};

// A suffix that ends another one comes behind it.
constexpr auto kSuffixes = std::to_array<Suffix>({
    {".lora_A.weight", LoraTensor::down},
    {".lora_B.weight", LoraTensor::up},
    {".lora_A.default.weight", LoraTensor::down},
    {".lora_B.default.weight", LoraTensor::up},
    {".lora_down.weight", LoraTensor::down},
    {".lora_up.weight", LoraTensor::up},
    {".lora.down.weight", LoraTensor::down},
    {".lora.up.weight", LoraTensor::up},
    {"_lora.down.weight", LoraTensor::down},
    {"_lora.up.weight", LoraTensor::up},
    {".lora_linear_layer.down.weight", LoraTensor::down},
    {".lora_linear_layer.up.weight", LoraTensor::up},
    {".alpha", LoraTensor::alpha},
    {".diff", LoraTensor::difference},
    {".diff_b", LoraTensor::bias_change},
    {".diff_m", LoraTensor::table_change},
});

// Forms whose keys hold one of these words.
constexpr auto kForms = std::to_array<Suffix>({
    {".dora_scale", {}, "DoRA"},
    {".lora_magnitude_vector", {}, "DoRA"},
    {".lora_mid", {}, "LoCon with a middle factor"},
    {".hada_", {}, "LyCORIS LoHa"},
    {".lokr_", {}, "LyCORIS LoKr"},
    {".oft_", {}, "OFT"},
    {".boft_", {}, "OFT"},
    {".on_input", {}, "LyCORIS IA3"},
    {".w_norm", {}, "LyCORIS norms"},
    {".b_norm", {}, "LyCORIS norms"},
    {".set_weight", {}, "whole weights (.set_weight)"},
    {".reshape_weight", {}, "reshaped weights (.reshape_weight)"},
    {".lora_B.bias", {}, "LoRA biases (.lora_B.bias)"},
    {".lora_embedding_", {}, "embeddings"},
});

constexpr auto kDotted = std::to_array<std::string_view>(
    {"base_model.model.", "model.diffusion_model.", "diffusion_model.", "pipe.dit.", "dit.",
     "transformer.", "transformer_2.", "unet.", "model."});
constexpr auto kJoined =
    std::to_array<std::string_view>({"lora_unet__", "lora_unet_", "lora_transformer_", "lycoris_"});
constexpr auto kTextEncoders = std::to_array<std::string_view>(
    {"text_encoder.", "text_encoder_2.", "text_encoders.", "lora_te"});

template <std::size_t N>
bool strip_one(std::string_view& name, const std::array<std::string_view, N>& prefixes) {
  const auto* const found = std::ranges::find_if(
      prefixes, [&](std::string_view prefix) { return name.starts_with(prefix); });
  if (found == prefixes.end()) return false;
  name.remove_prefix(found->size());
  return true;
}

}  // namespace

LoraKey parse_lora_key(std::string_view key) {
  for (const Suffix& suffix : kSuffixes) {
    if (key.ends_with(suffix.text))
      return {suffix.kind, key.substr(0, key.size() - suffix.text.size())};
  }
  for (const Suffix& form : kForms) {
    const std::size_t at = key.find(form.text);
    if (at != std::string_view::npos) return {LoraTensor::other, key.substr(0, at), form.form};
  }
  return {LoraTensor::other, key};
}

std::string lora_module(std::string_view module) {
  while (strip_one(module, kDotted)) {
  }
  strip_one(module, kJoined);
  std::string name(module);
  std::ranges::replace(name, '.', '_');
  return name;
}

bool is_of_text_encoder(std::string_view key) {
  return std::ranges::any_of(kTextEncoders,
                             [&](std::string_view prefix) { return key.starts_with(prefix); });
}

}  // namespace diptych
