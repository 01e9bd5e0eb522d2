// What peft writes into the header of a LoRA file: its alpha, which then has no tensors.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "lib/tensor/tensor_file.h"

namespace diptych {

struct LoraHeader {
  double lora_alpha = 8;  // peft's own default
  std::map<std::string, double>
      alphas;                    // "alpha_pattern": of modules, or of the ends of their names
  bool rank_stabilised = false;  // alpha / sqrt(rank) instead of alpha / rank

  double alpha(std::string_view module) const;

  // "lora_adapter_metadata" of the header; nothing where it has none. Throws InputError naming the
  // file and the key: not JSON, values of another type, and what is not supported (use_dora).
  static std::optional<LoraHeader> read(const TensorFile& file);
};

}  // namespace diptych
