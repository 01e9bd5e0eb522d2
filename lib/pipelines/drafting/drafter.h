// The drafter that a run names: opened (config, headers), then loaded. And what a request may say
// of it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>

#include "lib/models/block_drafter/block_drafter.h"
#include "lib/pipelines/drafting/settings.h"
#include "lib/runtime/runtime.h"

namespace diptych {

class OpenedDrafter {
 public:
  // Reads no weights. `target`: the model that it drafts for; `dummy`: random weights of the
  // folder's sizes. Throws InputError.
  OpenedDrafter(const std::filesystem::path& folder, const QwenConfig& target, bool dummy,
                const Runtime& runtime);

  const BlockDrafterConfig& config() const { return config_; }
  Weights& weights() { return weights_; }
  const Weights& weights() const { return weights_; }
  void load(const MatrixQuantization& quantization);  // nothing where it is loaded
  const BlockDrafter* loaded() const { return drafter_ ? &*drafter_ : nullptr; }
  // Throws BadWeights as require_finite(); reads all weights.
  void require_finite_weights() const;

 private:
  std::filesystem::path folder_;
  BlockDrafterConfig config_;
  Weights weights_;
  std::optional<BlockDrafter> drafter_;
};

// Tokens that are checked at once: 1 without a drafter (null). `asked`: 0 as the drafter was
// trained.
std::int64_t drafted_block(const OpenedDrafter* drafter, std::int64_t asked);

// Throws InputError for settings of drafts where no drafter is named.
void require_drafter(const DraftSettings& settings);

}  // namespace diptych
