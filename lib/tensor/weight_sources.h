// How the tensors of files become those of a model: under other names, with the scale of their fp8
// codes, and with changes that are added. Rules of the files in use: specs: wan-weights.md 6 and 7.
#pragma once

#include <cstddef>
#include <map>
#include <string>
#include <vector>

#include "lib/tensor/checkpoint_files.h"
#include "lib/tensor/types.h"

namespace diptych {

// Is added to a weight in float32: factor * up @ down, or factor * difference.
struct WeightChange {
  Tensor up, down;    // [outputs, rank], [rank, inputs], as stored; undefined: a difference
  Tensor difference;  // as many elements as the weight has
  double factor = 1;
};
using WeightChanges =
    std::map<std::string, std::vector<WeightChange>, std::less<>>;  // by the model's names

// How a file is read for a model that calls its tensors otherwise.
struct WeightReading {
  std::string
      prefix{};  // of the stored names that are the model's; tensors without it are left out
  // Stored name, without the prefix -> the model's; "": it is left out. A name that is not here is
  // the model's.
  std::map<std::string, std::string, std::less<>> names{};
  WeightChanges changes{};
};

// Where a tensor of the model is stored, and what its values are multiplied by.
struct WeightSource {
  std::size_t file = 0;  // place in CheckpointFiles::files
  std::string stored;    // its name there
  Tensor scale;          // float32 on the CPU, one or one a row; undefined: as stored
};
using WeightSources = std::map<std::string, WeightSource, std::less<>>;  // by the model's names

// What belongs to an fp8 weight M.weight is no tensor of the model: M.scale_weight or
// M.weight_scale, which multiplies its values, M.scale_input, M.input_scale, M.comfy_quant and the
// mark scaled_fp8. Decides by dtypes and by these names. Throws InputError naming file and tensor:
// two tensors of one name, a scale that does not fit or is not finite, a weight that is not fp8
// with a scale other than 1, and a format of M.comfy_quant or of the header's
// _quantization_metadata other than float8_e4m3fn and float8_e5m2.
WeightSources weight_sources(const CheckpointFiles& checkpoint, const WeightReading& reading);

// float32(stored) * scale + changes, in float32 on that device, in memory of its own. A scale is
// multiplied first; products of changes are in float32, too.
Tensor computed_weight(const Tensor& stored, const Tensor& scale,
                       const std::vector<WeightChange>& changes, at::Device device);

}  // namespace diptych
