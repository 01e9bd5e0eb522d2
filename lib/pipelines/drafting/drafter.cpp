#include "lib/pipelines/drafting/drafter.h"

#include "lib/base/error.h"
#include "lib/base/folder.h"
#include "lib/tensor/finite.h"
#include "lib/tensor/stored_tensors.h"

namespace diptych {
namespace {

constexpr std::uint64_t kSeed = 1;  // of random weights, that are not the model's

}  // namespace

OpenedDrafter::OpenedDrafter(const std::filesystem::path& folder, const QwenConfig& target,
                             bool dummy, const Runtime& runtime)
    : folder_(folder) {
  const Setting setting = Setting::of("draft_model");
  require_folder(folder, setting);
  about(setting, [&] {
    config_ = BlockDrafterConfig::load(folder / "config.json", target);
    weights_ = dummy ? Weights::dummy(runtime.device, runtime.dtype, kSeed)
                     : Weights::open(folder, runtime.device, runtime.dtype);
  });
}

void OpenedDrafter::load(const MatrixQuantization& quantization) {
  if (drafter_) return;
  Weights::ReadAhead reading(weights_);
  drafter_ = BlockDrafter::load(weights_, config_, quantization);
  reading.finish();
}

void OpenedDrafter::require_finite_weights() const {
  if (!weights_.is_dummy()) require_finite(open_checkpoint(folder_));
}

std::int64_t drafted_block(const OpenedDrafter* drafter, std::int64_t asked) {
  if (drafter == nullptr) return 1;
  return asked > 0 ? asked : drafter->config().block_size;
}

void require_drafter(const DraftSettings& settings) {
  if (!settings.draft_model.empty()) return;
  if (settings.block_size > 1)
    throw InputError(Setting::of("block_size"),
                     SettingText{"given without ", Setting::of("draft_model", "DIR")});
}

}  // namespace diptych
