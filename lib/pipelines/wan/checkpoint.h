// A Wan checkpoint in the layout of diffusers: opened (configs, tokenizer, headers), then loaded.
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <string_view>
#include <vector>

#include "lib/media/clip_image.h"
#include "lib/models/clip_vision/clip_vision.h"
#include "lib/models/wan/memory.h"
#include "lib/models/wan/wan.h"
#include "lib/models/wan_vae/wan_vae.h"
#include "lib/pipelines/dit/checkpoint.h"
#include "lib/pipelines/wan/loras.h"
#include "lib/pipelines/wan/parts.h"
#include "lib/pipelines/wan/release.h"

namespace diptych {

class WanCheckpoint final : public DitCheckpoint {
 public:
  static constexpr std::size_t kExperts = 2;

  WanCheckpoint(const RunConfig& config, const Runtime& runtime, Log& log);

  std::unique_ptr<DitJob> make_job(const RunConfig& request, Log& log) override;
  std::unique_ptr<DitTurn> make_turn(DitJobs jobs) const override;
  DitTexts& texts() override { return *texts_; }
  std::int64_t head_dim() const override { return dit_.attention_head_dim; }
  SharedKeys shared_keys() const { return preferred_shared_keys(runtime_, head_dim()); }
  MemoryCosts costs(DitJobs jobs) const override;
  std::int64_t matrix_bytes(const MatrixFormat& format) const override;
  void load(const MemoryPlan& plan, Progress& progress) override;
  bool is_loaded() const override { return loaded_; }
  void use_strips(bool strips) override { tiles_ = strips; }
  std::string weights_hash(const std::stop_token& stop) const override;
  void require_finite_weights() const override;
  std::string_view vae_dtype() const override;
  std::vector<AddedWeightsRecord> added_weights() const override { return recorded_loras(loras_); }

  const Runtime& runtime() const { return runtime_; }
  bool is_dummy() const override { return dummy_; }
  const WanIndex& index() const { return index_; }
  const WanConfig& dit() const { return dit_; }
  bool has_experts() const { return index_.has_second_expert; }
  // Conditions on a picture by channels beside the latent's.
  bool joins_picture() const { return dit_.in_channels > dit_.out_channels; }
  bool sees_picture() const { return dit_.image_dim.has_value(); }
  // The transformer of that place, high noise first. Only one is on the device where both do not
  // fit: the other goes, and what was made of it must not be used any more.
  const WanTransformer& expert(std::size_t place);
  bool keeps_experts() const { return keeps_experts_; }
  const Weights& expert_weights(std::size_t place) const { return expert_weights_.at(place); }
  const WanVae& vae() const { return vae_; }
  std::optional<WanVaeTiling> tiling() const;
  const ClipVision& vision() const { return *vision_; }
  const ClipImageProcessor& image_processor() const { return image_processor_; }
  std::int64_t pixels_per_row() const { return 2 * vae_.config.spatial(); }
  const std::filesystem::path& folder() const { return folder_; }

 private:
  void open_release(WanRelease release);
  void open_folder();
  void open_weights();
  WanTransformer load_expert(std::size_t place) const;
  MemoryPlan plan(const MemoryChoice& choice, DitJobs jobs, PixelSize size,
                  std::size_t experts) const;
  WanForwardSizes step_sizes(DitJobs jobs, PixelSize size, std::int64_t branches) const;
  bool both_fit(DitJobs jobs) const;

  const Runtime& runtime_;
  std::filesystem::path folder_;  // "" = random weights of a release
  WanParts parts_;
  WanLoras loras_;
  bool dummy_ = false;
  WanVaePrecision vae_precision_;
  double max_vram_ = 0;
  WanIndex index_;
  WanConfig dit_;
  Umt5Config text_config_;
  ClipVisionConfig vision_config_;
  ClipImageProcessor image_processor_;
  std::optional<DitTexts> texts_;
  std::array<Weights, kExperts> expert_weights_;
  Weights vae_weights_, vision_weights_;
  std::optional<BlockOffload> offload_;
  bool keeps_experts_ = true, tiles_ = false, loaded_ = false;
  std::array<std::optional<WanTransformer>, kExperts> experts_;
  WanVae vae_;
  std::optional<ClipVision> vision_;
};

DitOpening wan_opening();

// What the folder lacks, or holds beyond or in another shape than its configs say.
std::vector<std::string> check_wan_layout(const std::filesystem::path& folder);

}  // namespace diptych
