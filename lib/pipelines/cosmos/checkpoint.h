// A Cosmos-Predict2 checkpoint in the layout of diffusers: opened (configs, tokenizer, headers),
// then loaded.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <string_view>
#include <vector>

#include "lib/models/cosmos/cosmos.h"
#include "lib/models/cosmos/memory.h"
#include "lib/models/wan_vae/wan_vae.h"
#include "lib/pipelines/cosmos/release.h"
#include "lib/pipelines/cosmos/settings.h"
#include "lib/pipelines/dit/checkpoint.h"

namespace diptych {

class CosmosCheckpoint final : public DitCheckpoint {
 public:
  CosmosCheckpoint(const RunConfig& config, const Runtime& runtime);

  std::unique_ptr<DitJob> make_job(const RunConfig& request, Log& log) override;
  std::unique_ptr<DitTurn> make_turn(DitJobs jobs) const override;
  DitTexts& texts() override { return *texts_; }
  std::int64_t head_dim() const override { return dit_.attention_head_dim; }
  SharedKeys shared_keys() const { return preferred_shared_keys(runtime_, head_dim()); }
  MemoryCosts costs(DitJobs jobs) const override;
  std::int64_t matrix_bytes(const MatrixFormat& format) const override;
  void load(const MemoryPlan& plan, Progress& progress) override;
  bool is_loaded() const override { return transformer_.has_value(); }
  void use_strips(bool strips) override { tiles_ = strips; }
  std::string weights_hash(const std::stop_token& stop) const override;
  void require_finite_weights() const override;
  std::string_view vae_dtype() const override;

  const Runtime& runtime() const { return runtime_; }
  bool is_dummy() const override { return dummy_; }
  const CosmosConfig& dit() const { return dit_; }
  bool continues() const { return index_.continues; }  // video2world: goes on from given frames
  const CosmosTransformer& transformer() const { return *transformer_; }
  const WanVaeConfig& vae_config() const { return vae_config_; }
  const WanVae& vae() const { return *vae_; }
  std::optional<WanVaeTiling> tiling() const;
  std::int64_t pixels_per_row() const { return CosmosConfig::kPatch * vae_config_.spatial(); }
  std::string name() const;  // of the model, for messages: its folder, or what stands for one

 private:
  Weights open_part(std::string_view part, at::ScalarType dtype) const;
  void open_release();
  void open_folder();
  void check_layout() const;
  MemoryPlan plan(const MemoryChoice& choice, DitJobs jobs, PixelSize size) const;
  CosmosForward step_sizes(DitJobs jobs, PixelSize size, std::int64_t branches) const;

  const Runtime& runtime_;
  std::filesystem::path folder_;  // "" = random weights of a release
  CosmosRelease release_;
  bool dummy_ = false;
  WanVaePrecision vae_precision_;
  CosmosIndex index_;
  CosmosConfig dit_;
  Umt5Config text_config_;
  WanVaeConfig vae_config_;
  std::optional<DitTexts> texts_;
  Weights dit_weights_, vae_weights_;
  bool tiles_ = false;
  std::optional<CosmosTransformer> transformer_;
  std::optional<WanVae> vae_;
};

DitOpening cosmos_opening();

// What the folder lacks, or holds beyond or in another shape than its configs say.
std::vector<std::string> check_cosmos_layout(const std::filesystem::path& folder);

}  // namespace diptych
