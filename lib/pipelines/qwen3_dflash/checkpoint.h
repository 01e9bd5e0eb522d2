// A Qwen3 checkpoint and its drafter: opened (configs, tokenizer, headers), then loaded.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>

#include "lib/base/log.h"
#include "lib/config/run_config.h"
#include "lib/models/qwen3/qwen3.h"
#include "lib/pipelines/drafting/drafter.h"
#include "lib/runtime/runtime.h"
#include "lib/runtime/stored_dtype.h"
#include "lib/text/tokenizer.h"

namespace diptych {

class Qwen3Checkpoint {
 public:
  // Reads no weights. Throws InputError.
  Qwen3Checkpoint(const RunConfig& config, const Runtime& runtime);

  const Qwen3Config& config() const { return config_; }
  const Tokenizer& tokenizer() const { return *tokenizer_; }
  std::int64_t stop_id() const { return stop_id_; }  // the tokenizer's end of a turn
  const OpenedDrafter* drafter() const { return drafter_ ? &*drafter_ : nullptr; }  // null: none
  // Throws InputError where the folder's chat template is not that of Qwen3.
  void require_chat() const;

  void load(Progress& progress);
  bool is_loaded() const { return target_.has_value(); }
  const Qwen3& target() const { return *target_; }
  const BlockDrafter* loaded_drafter() const { return drafter_ ? drafter_->loaded() : nullptr; }

  // A name for the files' content; reads them all, slow. A stop requested meanwhile ends it early.
  std::string weights_hash(const std::stop_token& stop) const;
  // Throws BadWeights naming the first tensor that holds NaN or infinity; reads them all, slow.
  void require_finite_weights() const;

 private:
  void open_folder();

  const Runtime& runtime_;
  std::filesystem::path folder_;  // "" = random weights
  bool dummy_ = false;
  Qwen3Config config_;
  std::unique_ptr<Tokenizer> tokenizer_;
  std::int64_t stop_id_ = 0;
  std::string why_no_chat_;  // "" = the template is Qwen3's
  Weights weights_;
  std::optional<Qwen3> target_;
  std::optional<OpenedDrafter> drafter_;
};

// What a checkpoint stores; throws InputError.
StoredWeights stored_qwen3(const RunConfig& config);

}  // namespace diptych
