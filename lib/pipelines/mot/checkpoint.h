// What a session needs of a family's checkpoint: opened (sizes, tokenizer, headers), then loaded
// (weights on the device).
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <string_view>
#include <vector>

#include "lib/config/run_config.h"
#include "lib/pipelines/mot/memory.h"
#include "lib/pipelines/mot/model.h"
#include "lib/runtime/runtime.h"
#include "lib/runtime/stored_dtype.h"

namespace diptych {

struct MotJob;

class MotCheckpoint {
 public:
  MotCheckpoint() = default;
  MotCheckpoint(const MotCheckpoint&) = delete;  // `mot_` refers to its parts
  MotCheckpoint& operator=(const MotCheckpoint&) = delete;
  virtual ~MotCheckpoint() = default;

  // What the parts on the backbone borrow; it stays where it is.
  const MotModel& mot() const { return *mot_; }
  // Throws InputError for whatever the checkpoint and what is on this machine cannot serve. Logs
  // once where texts are to be written without their kernel.
  virtual std::unique_ptr<MotJob> make_job(const RunConfig& request, const Runtime& runtime,
                                           Log& log) const = 0;

  // Gives all tensors their places; for a GPU their values are undefined until finish_loading() has
  // returned, and are read meanwhile. `offload`: of the decoder layers' weights. What was loaded,
  // or is being loaded, goes before.
  void begin_loading(const std::optional<MotOffload>& offload);
  void finish_loading();
  void load(const std::optional<MotOffload>& offload = {}) {
    begin_loading(offload);
    finish_loading();
  }
  bool is_loading() const { return reading_.has_value(); }
  // Parts that not every request needs; nothing where they are there already.
  virtual void load_vision() = 0;  // looks at pictures
  virtual void load_head() = 0;    // writes text
  virtual bool has_vision() const = 0;
  // Where the weights come from, the model's first.
  virtual std::vector<Weights> sources() const = 0;
  // A name for the loaded files' content; reads them all, slow. A stop requested meanwhile ends it
  // early.
  virtual std::string weights_hash(const std::stop_token& stop) const = 0;
  // Throws BadWeights naming the first tensor that holds NaN or infinity; reads them all, slow.
  virtual void require_finite_weights() const = 0;

  // What memory is planned with, as far as the checkpoint says.
  virtual MotSizes sizes() const = 0;
  // What a run on the CPU uses where the files are mapped.
  virtual MappedWeights mapped() const = 0;
  // Decodes zeros of that size, for what a first time takes longer. Nothing of it is used. May run
  // on another thread meanwhile.
  virtual void rehearse_decoding(const LatentSize& size, bool strips) const = 0;

  bool is_dummy = false;              // random weights
  std::string_view vae_dtype;         // what the autoencoder computes in, as Report::vae_dtype
  std::filesystem::path draft_model;  // of the drafter of its texts, "" = none
  // The autoencoder works in strips, where it can; set by who plans the memory.
  bool strips = false;

 protected:
  // begin_loading() while the rest is opened, before it is known what for: where the device has
  // room for twice the weights, so that hardly a request will want some of them offloaded.
  void load_ahead(const Runtime& runtime);
  // Of begin_loading(), while weights are read ahead.
  virtual void place_weights(const std::optional<MotOffload>& offload) = 0;
  virtual void drop_weights() = 0;
  // Takes the memory of all layers' matrices from the device in one piece, which is quicker than
  // one by one. The allocator keeps it for them.
  void reserve_layers(const QwenConfig& llm, Quantization kind) const;

  std::optional<MotModel> mot_;  // once it is open

 private:
  void begin_reading(const std::optional<MotOffload>& offload, std::uint64_t temporary_bytes);

  std::optional<Weights::ReadAhead> reading_;
};

// How a family opens its checkpoints. Both throw InputError.
struct MotOpening {
  // What the model's file of the run stores; nothing of dummy weights.
  StoredWeights (*stored)(const RunConfig& config);
  // Reads no weights, unless loading begins: where the run says load_ahead.
  std::unique_ptr<MotCheckpoint> (*open)(const RunConfig& config, const Runtime& runtime, Log& log);
};

}  // namespace diptych
