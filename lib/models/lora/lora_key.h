// The keys of LoRA files, in the namings that are in use. Sources: specs: wan-weights.md 2.
#pragma once

#include <string>
#include <string_view>

namespace diptych {

enum class LoraTensor {
  down,          // A [rank, inputs]
  up,            // B [outputs, rank]
  alpha,         // a number: the product counts alpha / rank times
  difference,    // of the weight
  bias_change,   // ".diff_b", of the bias
  table_change,  // ".diff_m", of a table that a block adds to its modulation
  other,         // a form of change that is not supported, or no key of a LoRA file
};

struct LoraKey {
  LoraTensor kind = LoraTensor::other;
  std::string_view module = {};  // what stands before the suffix, as it is in the file
  std::string_view form = {};    // of `other`: the name of that form ("DoRA"), "" = an unknown key
};

LoraKey parse_lora_key(std::string_view key);

// The module without the prefixes that trainers put before it, and with _ for each dot: one form
// for "diffusion_model.blocks.0.self_attn.q", "lora_unet_blocks_0_self_attn_q" and what is half
// converted between them.
std::string lora_module(std::string_view module);

// Whether the key is for a text encoder, which LoRA files of some trainers change as well.
bool is_of_text_encoder(std::string_view key);

}  // namespace diptych
