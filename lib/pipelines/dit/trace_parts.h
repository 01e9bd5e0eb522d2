// The names of recorded tensors of single parts, for the tables of families that have them.
#pragma once

#include <array>
#include <cstddef>
#include <string_view>

#include "lib/verify/trace_names.h"

namespace diptych {

inline constexpr std::array<std::string_view, 7> kPartStages = {"encoder",
                                                                "prompt_embeds",
                                                                "diffusers_unipc",
                                                                "official_flow_unipc",
                                                                "fastvideo_flow_unipc",
                                                                "diffusers_flow_match_euler",
                                                                "karras"};

// Of the autoencoder's chunks, then of what is made of them.
inline constexpr std::array<std::string_view, 15> kPartWithin = {
    "conv_in", "down_blocks", "mid_resnet", "mid_attn",       "mid_block", "up_blocks",
    "out",     "moments",     "mean",       "logvar_clamped", "std",       "normalized_mode",
    "video",   "sigmas_f",    "t_model"};

// A case may be exact in its timesteps and not in its levels, or say of its levels alone how near
// both are.
inline constexpr std::array<TraceGroups, 3> kPartGroups = {
    TraceGroups{"*.sigmas*", {"sigmas"}}, TraceGroups{"*.timesteps", {"timesteps", "sigmas"}},
    TraceGroups{"*.t_model", {"sigmas"}}};

template <typename T, std::size_t A, std::size_t B>
constexpr std::array<T, A + B> joined(const std::array<T, A>& first,
                                      const std::array<T, B>& second) {
  std::array<T, A + B> all{};
  for (std::size_t i = 0; i < A; ++i) all[i] = first[i];
  for (std::size_t i = 0; i < B; ++i) all[A + i] = second[i];
  return all;
}

}  // namespace diptych
