// What only a request to Cosmos-Predict2 has.
#pragma once

#include <array>
#include <string_view>

#include "lib/base/choices.h"

namespace diptych {

// Which release's sizes random weights have where no folder says it: Text2Image (t2i) and
// Video2World (v2w).
enum class CosmosRelease { t2i_2b, v2w_2b, t2i_14b, v2w_14b };
template <>
inline constexpr std::array<std::string_view, 4> kChoiceNames<CosmosRelease> = {
    "2b-t2i", "2b-v2w", "14b-t2i", "14b-v2w"};

struct CosmosSettings {
  CosmosRelease release = CosmosRelease::t2i_2b;
};

}  // namespace diptych
