// A Lance checkpoint: one folder with the weights of pictures, those of clips, the vision tower and
// the autoencoder. specs: lance.md section 2.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <string_view>
#include <vector>

#include "lib/models/lance/lance.h"
#include "lib/models/qwen/vision.h"
#include "lib/models/wan_vae/wan_vae.h"
#include "lib/pipelines/lance/prompt.h"
#include "lib/pipelines/mot/checkpoint.h"
#include "lib/text/tokenizer.h"

namespace diptych {

// Whether the weights of clips are for it, rather than those of pictures.
bool is_of_clips(LanceTask task);

// Where the parts lie below the folder.
struct LanceFolders {
  std::filesystem::path root, llm, vit;

  // Of the weights that a task needs; empty paths for an empty root. Throws InputError naming what
  // is missing.
  static LanceFolders of(const std::filesystem::path& root, LanceTask task);
  std::filesystem::path model_file() const;  // model.safetensors, else ema.safetensors
  std::filesystem::path vit_file() const;    // vit.safetensors
  std::filesystem::path vae_file() const;    // Wan2.2_VAE.pth, else .safetensors
};

struct LanceCheckpoint final : MotCheckpoint {
  LanceFolders folders;             // empty: no folder was given
  LanceTask task = LanceTask::t2i;  // of those that these weights are for
  LanceConfig config;
  MotBackbone language_model;
  MotLatents latents;
  std::optional<QwenVision> vision;  // where it was loaded
  WanVae vae;
  std::unique_ptr<Tokenizer> tokenizer;
  LanceMarkers markers;
  MatrixQuantization quantization;
  KernelPolicy kernels = KernelPolicy::automatic;
  // Where it was loaded from. The vision tower's are those of the model's file where it has them.
  Weights model_weights = Weights::dummy(at::kCPU, at::kFloat);
  Weights vit_weights = Weights::dummy(at::kCPU, at::kFloat);
  WanVaePrecision vae_precision;
  Weights vae_weights = Weights::dummy(at::kCPU, at::kFloat);

  // As BagelCheckpoint::open. `run`: its model, task, load_format and vae_dtype. Logs which file's
  // vision tower is taken where two have one.
  static std::unique_ptr<LanceCheckpoint> open(const RunConfig& run, const Runtime& runtime,
                                               Log& log);

  // In job.cpp, with what it makes.
  std::unique_ptr<MotJob> make_job(const RunConfig& request, const Runtime& runtime,
                                   Log& log) const override;
  void load_vision() override;
  void load_head() override;
  bool has_vision() const override { return vision.has_value(); }
  std::vector<Weights> sources() const override {
    return {model_weights, vae_weights, vit_weights};
  }
  std::string weights_hash(const std::stop_token& stop) const override;  // <model>-<vit>-<vae>
  void require_finite_weights() const override;
  MotSizes sizes() const override;
  MappedWeights mapped() const override;
  void rehearse_decoding(const LatentSize& size, bool strips) const override;

  // Whether the model's own file holds the vision tower.
  bool bundles_vision() const;

 private:
  void place_weights(const std::optional<MotOffload>& offload) override;
  void drop_weights() override;
  void open_weights(const RunConfig& run, const Runtime& runtime, Log& log);
  void open_files(const Runtime& runtime, Log& log);
};

// For MotSession.
StoredWeights lance_stored_weights(const RunConfig& run);
std::unique_ptr<MotCheckpoint> open_lance_checkpoint(const RunConfig& run, const Runtime& runtime,
                                                     Log& log);
inline constexpr MotOpening kLanceOpening = {lance_stored_weights, open_lance_checkpoint};

// What the folder lacks, holds beyond, or holds in another shape than its configs say; as
// Family::layout.
std::vector<std::string> check_lance_layout(const std::filesystem::path& folder);

}  // namespace diptych
