// What a session needs of the checkpoint of a family of diffusion transformers: opened (sizes,
// tokenizer, headers), then loaded (weights on the device).
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <string_view>
#include <vector>

#include "lib/config/run_config.h"
#include "lib/models/matrices.h"
#include "lib/pipelines/dit/job.h"
#include "lib/pipelines/dit/texts.h"
#include "lib/runtime/runtime.h"
#include "lib/runtime/stored_dtype.h"
#include "lib/session/memory/fit.h"
#include "lib/session/result.h"

namespace diptych {

class DitCheckpoint {
 public:
  virtual ~DitCheckpoint() = default;

  // Throws InputError for whatever the checkpoint and what is on this machine cannot serve.
  virtual std::unique_ptr<DitJob> make_job(const RunConfig& request, Log& log) = 0;
  // Several jobs must share pairwise (Session::may_share). They must outlive the turn.
  virtual std::unique_ptr<DitTurn> make_turn(DitJobs jobs) const = 0;
  virtual DitTexts& texts() = 0;
  virtual std::int64_t head_dim() const = 0;

  // What a run of these jobs together takes beside the text encoder, which is gone by then.
  virtual MemoryCosts costs(DitJobs jobs) const = 0;
  // Of the matrices that --quantization is about, in all transformers.
  virtual std::int64_t matrix_bytes(const MatrixFormat& format) const = 0;
  // Reads the weights, placed as the plan says.
  virtual void load(const MemoryPlan& plan, Progress& progress) = 0;
  virtual bool is_loaded() const = 0;
  virtual bool is_dummy() const = 0;  // random weights
  // Whether the autoencoder works in tiles from now on.
  virtual void use_strips(bool strips) = 0;
  // A name for the files' content; reads them all, slow. A stop requested meanwhile ends it early.
  virtual std::string weights_hash(const std::stop_token& stop) const = 0;
  // Throws BadWeights naming the first tensor that holds NaN or infinity; reads them all, slow.
  virtual void require_finite_weights() const = 0;
  virtual std::string_view vae_dtype() const = 0;
  // Of LoRA files and the like; reads them all.
  virtual std::vector<AddedWeightsRecord> added_weights() const { return {}; }
};

// How a family opens its checkpoints. Neither reads weights; both throw InputError.
struct DitOpening {
  StoredWeights (*stored)(const RunConfig& config);
  std::unique_ptr<DitCheckpoint> (*open)(const RunConfig& config, const Runtime& runtime, Log& log);
};

}  // namespace diptych
