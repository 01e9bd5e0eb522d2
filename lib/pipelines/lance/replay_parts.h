// Recorded cases of single parts: the autoencoder, the tokenizer, and what is read.
#pragma once

#include <array>
#include <string>
#include <string_view>

#include "lib/pipelines/family.h"

namespace diptych {

// The kinds that these know.
inline constexpr std::array<std::string_view, 4> kLanceParts = {"vae", "tokenizer", "preprocess",
                                                                "positions"};

// False for other kinds. `config`: its model is the folder that holds all parts.
bool replay_lance_inputs(const std::string& kind, const RecordedCase& recorded,
                         const RunConfig& config, TraceSink& trace);
bool replay_lance_part(const std::string& kind, const RecordedCase& recorded,
                       const RunConfig& config, TraceSink& trace);

}  // namespace diptych
