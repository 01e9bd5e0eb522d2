// What only a request to Wan has.
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "lib/base/choices.h"
#include "lib/config/added_weights.h"

namespace diptych {

// Which release's sizes random weights have where no folder says it.
enum class WanRelease {
  t2v_1_3b,
  t2v_14b,
  i2v_14b,
  t2v_a14b,
  i2v_a14b,
  ti2v_5b,
};
template <>
inline constexpr std::array<std::string_view, 6> kChoiceNames<WanRelease> = {
    "t2v-1.3b", "t2v-14b", "i2v-14b", "t2v-a14b", "i2v-a14b", "ti2v-5b"};

// How prompts are cleaned (lib/text/prompt_cleaning.h, in its order).
enum class WanCleaning { none, strip, diffusers, ftfy, whitespace };
template <>
inline constexpr std::array<std::string_view, 5> kChoiceNames<WanCleaning> = {
    "none", "strip", "diffusers", "ftfy", "whitespace"};

// Which differences of a LoRA file are added: those that diffusers adds, or all.
enum class WanLoraDiffs { diffusers, all };
template <>
inline constexpr std::array<std::string_view, 2> kChoiceNames<WanLoraDiffs> = {"diffusers", "all"};

// The experts a LoRA file may be for, as --lora names them.
inline constexpr std::array<std::string_view, 3> kWanLoraParts = {"high", "low", "both"};

struct WanSettings {
  WanRelease release = WanRelease::t2v_14b;
  FlowSampler sampler = FlowSampler::unipc;
  WanCleaning cleaning = WanCleaning::ftfy;
  double low_noise_scale = 0;  // text guidance of the second expert; 0: as the first's
  double boundary = 0;         // share of the schedule where the second begins; 0: the checkpoint's
  double guidance_rescale = 0;  // 0: off
  double cfg_gate = 1;   // share of steps behind which the second branch is not computed; 1: off
  std::string teacache;  // coefficients of TeaCache, highest power first; "" = the model's
  std::int64_t teacache_first = 0;  // its steps at the start that are computed; 0: as published
  bool teacache_ret_steps = false;  // its mode of the modulated projections
  std::vector<AddedWeights> loras;
  WanLoraDiffs lora_diffs = WanLoraDiffs::diffusers;
  std::filesystem::path transformer, transformer_2, text_encoder, vae;  // "" = the folder's
};

}  // namespace diptych
