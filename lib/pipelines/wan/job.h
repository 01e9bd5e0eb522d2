// A request as Wan reads it, made once. specs: wan.md sections 2 to 9.
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <vector>

#include "lib/pipelines/dit/job.h"
#include "lib/pipelines/wan/checkpoint.h"
#include "lib/pipelines/wan/settings.h"
#include "lib/sampling/flow_solver.h"
#include "lib/sampling/step_cache/timestep_teacache.h"

namespace diptych {

struct WanJob final : DitJob {
  // Throws as DitCheckpoint::make_job. The checkpoint must outlive it.
  WanJob(const RunConfig& request, WanCheckpoint& checkpoint, Log& log);

  std::optional<ClipShape> clip_shape() const override;

  bool guided() const { return branches > 1; }
  // The scale of a step: each expert has its own.
  double scale(std::size_t expert) const { return expert == 0 ? high_scale : low_scale; }
  std::size_t expert_of(std::int64_t step) const;
  std::int64_t changes() const override;

  WanCheckpoint& checkpoint;
  WanSettings settings;
  WanLatentSize latent;
  double high_scale = 1, low_scale = 1;
  std::optional<TimestepTeaCacheConfig> teacache;
  std::vector<float> timesteps;    // of each update, as the network sees them
  std::optional<double> boundary;  // a timestep, of two experts: from here on down the second
  std::filesystem::path picture;   // "" = none
  Tensor image;                    // once read: uint8 [H, W, 3]
  SharedKeys shared_keys;          // how the equal keys of the texts' padding enter attention
  Tensor recorded_noise;           // of a case: float32 [C, F, h, w]

 private:
  void decode_inputs() override;
  void plan_size(Log& log);
  void plan_steps();
  void plan_texts(Log& log);
  void plan_cache();
};

}  // namespace diptych
