#include "lib/models/wan/lora.h"

#include <map>
#include <set>
#include <string>
#include <string_view>

#include "lib/models/wan/layout.h"
#include "lib/models/wan/names.h"

namespace diptych {
namespace {

constexpr std::string_view kWeight = ".weight", kBias = ".bias", kTable = "scale_shift_table";

std::string_view without(std::string_view name, std::string_view end) {
  return name.substr(0, name.size() - end.size());
}

// A table by the names of what holds it: "blocks.0.diff_m", "head.diff_m",
// "blocks.0.modulation.diff".
LoraModule table_module(const TensorShape& tensor) {
  const std::string original = wan_original_name(tensor.name);
  LoraModule module;
  module.name = tensor.name;
  module.names = {tensor.name, original, original.substr(0, original.rfind('.'))};
  module.table = tensor;
  module.takes_factors = false;
  return module;
}

// Norms and the patch embedding keep their values; of the linear layers diffusers adds what it
// reads: biases, that of the time projection only beside factors, and the last layer's difference.
void set_rules(LoraModule& module) {
  module.takes_factors = module.weight.shape.size() >= 2;
  if (module.weight.shape.size() != 2) return;
  const bool of_time = module.name == "condition_embedder.time_proj";
  module.bias_change = of_time ? LoraDifference::with_factors : LoraDifference::always;
  if (module.name == "proj_out") module.difference = LoraDifference::always;
}

}  // namespace

std::vector<LoraModule> wan_lora_modules(const WanConfig& config) {
  constexpr std::int64_t kImageDim = 1280, kImageRows = 514;  // of the releases that have them
  std::set<std::string> here;
  for (const TensorShape& tensor : wan_layout(config)) here.insert(tensor.name);
  WanConfig whole = config;
  if (!whole.image_dim) whole.image_dim = kImageDim;
  if (!whole.pos_embed_seq_len) whole.pos_embed_seq_len = kImageRows;
  std::vector<LoraModule> modules;
  std::map<std::string, LoraModule, std::less<>> by_name;
  for (const TensorShape& tensor : wan_layout(whole)) {
    if (tensor.name.ends_with(kTable)) {
      modules.push_back(table_module(tensor));
    } else if (tensor.name.ends_with(kWeight)) {
      by_name[std::string(without(tensor.name, kWeight))].weight = tensor;
    } else if (tensor.name.ends_with(kBias)) {
      by_name[std::string(without(tensor.name, kBias))].bias = tensor;
    }
  }
  for (auto& [name, module] : by_name) {
    module.name = name;
    module.names = {name, wan_original_name(name)};
    module.is_here = here.contains(module.weight.name);
    set_rules(module);
    modules.push_back(std::move(module));
  }
  return modules;
}

}  // namespace diptych
