// LoRA files: what they change of a model's weights. W' = W + scale * (alpha / rank) * B A, and
// differences that are added as they are. Rules: specs: wan-weights.md 2 to 4.
#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "lib/tensor/tensor_file.h"
#include "lib/tensor/tensor_names.h"
#include "lib/tensor/weight_sources.h"

namespace diptych {

// When a difference in a file counts without being asked for.
enum class LoraDifference { never, with_factors, always };

// A part of a model that LoRA files may change.
struct LoraModule {
  std::vector<std::string> names;   // as files call it; dots or _ between the words
  std::string name;                 // the model's own
  TensorShape weight, bias, table;  // tensors of the model, "" = it has none
  bool takes_factors = true;        // A and B of its weight
  LoraDifference difference = LoraDifference::never, bias_change = LoraDifference::never;
  bool is_here = true;  // this model has it, and not only others of its kind
};

struct LoraOptions {
  double scale = 1;
  bool all_differences = false;  // those of norms and tables, too
  // Which keys are read; none: all.
  std::function<bool(std::string_view key)> takes = {};
};

struct Lora {
  WeightChanges changes;
  std::size_t factors = 0, differences = 0;  // weights changed by A and B, and other changes
  std::set<std::int64_t> ranks;
  std::vector<std::string> unused;    // differences that do not count
  std::vector<std::string> absent;    // of modules that only other models of the kind have
  std::vector<std::string> of_texts;  // of a text encoder
};

// Reads the file for a model of these modules. alpha: the module's tensor, else that of the
// header's lora_adapter_metadata, else the rank. Throws InputError naming file and key: a key that
// fits nothing (with the number of such keys), a form that is not supported, A without B or B
// without A, alpha without both, shapes that do not fit each other or the weight, a key given twice
// under two prefixes, an alpha that is no number, a dtype that is not floating point, NaN, infinity
// and products that pass float32, and a file that changes nothing.
Lora read_lora(const TensorFile& file, const std::vector<LoraModule>& modules,
               const LoraOptions& options);

}  // namespace diptych
