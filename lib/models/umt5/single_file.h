// A UMT5 encoder in one file: in the naming of transformers, or of Wan's own release. specs:
// wan-weights.md 6.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "lib/models/umt5/config.h"
#include "lib/tensor/checkpoint_files.h"
#include "lib/tensor/weight_sources.h"

namespace diptych {

// "encoder.block.0.layer.0.SelfAttention.q.weight" -> "blocks.0.attn.q.weight"; unknown names as
// they are.
std::string umt5_original_name(std::string_view transformers);

struct Umt5FileNaming {
  std::string prefix;     // "text_encoders.umt5xxl.transformer." or the like, "" = none
  bool original = false;  // Wan's own names
};
// Nothing where the files hold no UMT5 encoder.
std::optional<Umt5FileNaming> umt5_file_naming(const CheckpointFiles& files);
// The tokenizer that some files hold ("spiece_model") is left out.
WeightReading umt5_file_reading(const Umt5FileNaming& naming, const Umt5Config& config);

}  // namespace diptych
