// A file of weights that are added to those of a model, such as a LoRA file, as flags, stage
// configs and records name it: "[PART=]FILE[:SCALE]".
#pragma once

#include <filesystem>
#include <span>
#include <string>
#include <string_view>

#include "lib/base/error.h"

namespace diptych {

struct AddedWeights {
  std::string part;  // of the model that it is for; "" = as the name of the file says
  std::filesystem::path file;
  double scale = 1;
  bool operator==(const AddedWeights&) const = default;
};

// `parts`: those that may stand before the file. What follows the last colon is the scale if it is
// a number, and must be one behind ".safetensors". Throws InputError "<where>: ..." for an empty
// path, a NUL, and a scale that is no finite number.
AddedWeights parse_added_weights(std::string_view text, std::span<const std::string_view> parts,
                                 const Subject& where);
std::string added_weights_text(const AddedWeights& added);  // a scale of 1 is left out

}  // namespace diptych
