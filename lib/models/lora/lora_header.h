// What peft writes into the header of a LoRA file: its alpha, which then has no tensors.
#pragma once

#include <optional>
#include <regex>
#include <string_view>
#include <utility>
#include <vector>

#include "lib/tensor/tensor_file.h"

namespace diptych {

struct LoraHeader {
  double lora_alpha = 8;                              // peft's own default
  std::vector<std::pair<std::regex, double>> alphas;  // "alpha_pattern": the first that fits counts
  bool rank_stabilised = false;                       // alpha / sqrt(rank) instead of alpha / rank

  double alpha(std::string_view module) const;

  // "lora_adapter_metadata" of the header; nothing where it has none. Throws InputError naming the
  // file and the key: not JSON, values of another type, a bad pattern, and what is not supported
  // (use_dora).
  static std::optional<LoraHeader> read(const TensorFile& file);
};

}  // namespace diptych
