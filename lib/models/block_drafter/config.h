// The sizes of a DFlash drafter, as its config.json gives them. specs: dflash.md section 2.2.
#pragma once

#include <cstdint>
#include <filesystem>
#include <vector>

#include "lib/models/qwen/config.h"

namespace diptych {

struct BlockDrafterConfig {
  QwenConfig decoder;                          // of the drafter's own layers
  std::int64_t block_size = 16;                // trained length of a block, with its anchor
  std::int64_t mask_token_id = 0;              // whose embedding marks a slot to be filled
  std::int64_t num_target_layers = 0;          // of the model that it drafts for
  std::vector<std::int64_t> target_layer_ids;  // whose outputs are the features, in their order
  std::filesystem::path file;                  // config.json, for errors

  std::int64_t feature_width() const {
    return static_cast<std::int64_t>(target_layer_ids.size()) * decoder.hidden_size;
  }

  // `target`: the model that it drafts for. Without target_layer_ids they are spread over the
  // target as default_target_layers() says. Throws InputError naming file and key: as
  // QwenConfig::load, for what does not fit the target, and for drafters of another kind: with
  // sliding or causal attention, with a vocabulary or mask embedding of their own, in the
  // "speculators" layout, or of DFlash's successors.
  static BlockDrafterConfig load(const std::filesystem::path& path, const QwenConfig& target);
};

// The layers that features are taken from by default: the middle one for one drafter layer, else
// evenly spread from 1 to target_layers - 3, rounded half to even (z-lab/dflash @44947fb,
// dflash/model.py, build_target_layer_ids).
std::vector<std::int64_t> default_target_layers(std::int64_t target_layers,
                                                std::int64_t drafter_layers);

}  // namespace diptych
