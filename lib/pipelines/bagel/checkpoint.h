// A BAGEL checkpoint: opened (sizes, tokenizer, headers), then loaded (weights on the device).
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <utility>
#include <vector>

#include "lib/models/bagel/bagel.h"
#include "lib/models/flux_vae/flux_vae.h"
#include "lib/pipelines/mot/checkpoint.h"
#include "lib/runtime/runtime.h"
#include "lib/runtime/stored_dtype.h"
#include "lib/text/tokenizer.h"

namespace diptych {

struct BagelCheckpoint final : MotCheckpoint {
  std::filesystem::path folder;  // empty: none was given
  Bagel model;
  FluxVae vae;  // float32, its products rounded to TF32 where the run says so
  std::unique_ptr<Tokenizer> tokenizer;
  std::int64_t bos = 0, eos = 0;    // <|im_start|>, <|im_end|>: around every text segment
  ImageMarkers markers;             // <|vision_start|>, <|vision_end|>
  MatrixQuantization quantization;  // of the decoder layers' projections
  Weights model_weights = Weights::dummy(at::kCPU, at::kFloat);  // where it was loaded from
  Weights vae_weights = Weights::dummy(at::kCPU, at::kFloat);

  // A folder in the released layout, or (load_format dummy) random weights of the folder's sizes,
  // of the released 7B sizes where no folder is given. Reads configs, tokenizer and headers, so
  // that a request can be checked before gigabytes move; load() does the rest. Both throw
  // InputError naming file and tensor.
  // `ahead`: as RunConfig::load_ahead.
  static std::unique_ptr<BagelCheckpoint> open(const std::filesystem::path& folder, bool dummy,
                                               const Runtime& runtime, bool ahead = false);

  // job.cpp, with what it makes.
  std::unique_ptr<MotJob> make_job(const RunConfig& request, const Runtime& runtime,
                                   Log& log) const override;
  // Throws InputError unless width and height are multiples of 16 within the position table.
  LatentSize latent_size(std::int64_t width, std::int64_t height) const;

  // checkpoint_load.cpp
  void load_vision() override;
  void load_head() override;
  std::string weights_hash(const std::stop_token& stop) const override;  // "<model>-<autoencoder>"
  void rehearse_decoding(const LatentSize& size, bool strips) const override;

  bool has_vision() const override { return model.vision.has_value(); }
  std::vector<Weights> sources() const override { return {model_weights, vae_weights}; }
  void require_finite_weights() const override;
  MotSizes sizes() const override;  // memory.cpp
  MappedWeights mapped() const override { return mapped_; }

  std::optional<VaeStrips> vae_strips() const {
    return strips ? std::optional<VaeStrips>(std::in_place) : std::nullopt;
  }

 private:
  void place_weights(const std::optional<MotOffload>& offload) override;
  void drop_weights() override;

  MappedWeights mapped_ = {[](const std::string&, at::ScalarType) { return false; }};
};

// For MotSession.
StoredWeights bagel_stored_weights(const RunConfig& config);
std::unique_ptr<MotCheckpoint> open_bagel_checkpoint(const RunConfig& config,
                                                     const Runtime& runtime, Log& log);
inline constexpr MotOpening kBagelOpening = {bagel_stored_weights, open_bagel_checkpoint};

// What the folder lacks, holds beyond, or holds in another shape than its configs say; as
// Family::layout.
std::vector<std::string> check_bagel_layout(const std::filesystem::path& folder);

}  // namespace diptych
