// Recorded cases of single parts: the autoencoder and the tokenizer.
#pragma once

#include <array>
#include <string>
#include <string_view>

#include "lib/pipelines/family.h"

namespace diptych {

// The kinds that replay_lance_part() knows.
inline constexpr std::array<std::string_view, 2> kLanceParts = {"vae", "tokenizer"};

// False for any other kind. `config`: its model is the folder that holds all parts.
bool replay_lance_part(const std::string& kind, const RecordedCase& recorded,
                       const RunConfig& config, TraceSink& trace);

}  // namespace diptych
