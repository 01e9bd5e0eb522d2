// What is published of TeaCache for Wan 2.1.
#pragma once

#include <array>
#include <string_view>

#include "lib/base/choices.h"
#include "lib/sampling/step_cache/timestep_teacache.h"

namespace diptych {

// Checkpoints with published coefficients.
enum class WanTeaCacheModel { t2v_1_3b, t2v_14b, i2v_14b_480p, i2v_14b_720p };
template <>
inline constexpr std::array<std::string_view, 4> kChoiceNames<WanTeaCacheModel> = {
    "t2v_1.3b", "t2v_14b", "i2v_14b_480p", "i2v_14b_720p"};

// As published, with the given choice of what is compared.
TimestepTeaCacheConfig published_teacache(WanTeaCacheModel model, bool use_ret_steps);
// As FastVideo sets it for the model.
TimestepTeaCacheConfig preset_teacache(WanTeaCacheModel model);

}  // namespace diptych
