// A request as Cosmos-Predict2 reads it, made once. specs: cosmos.md sections 2
// to 8.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <vector>

#include "lib/pipelines/cosmos/checkpoint.h"
#include "lib/pipelines/dit/job.h"

namespace diptych {

// What a recorded case has instead of files and a seed.
struct CosmosRecording {
  std::vector<Tensor> frames;     // that a clip begins with: uint8 [H, W, 3]
  Tensor noise, posterior_noise;  // float32 [C, F, h, w]; the latter of clips alone
};

struct CosmosJob final : DitJob {
  // Throws as DitCheckpoint::make_job. The checkpoint must outlive it.
  CosmosJob(const RunConfig& request, CosmosCheckpoint& checkpoint, Log& log,
            std::optional<CosmosRecording> recording = {});

  std::optional<ClipShape> clip_shape() const override;

  bool guided() const { return branches > 1; }
  bool continues() const { return checkpoint.continues(); }  // given frames
  double fps() const;                                        // of a clip

  CosmosCheckpoint& checkpoint;
  std::optional<CosmosRecording> recording;
  CosmosLatentSize latent;
  Tensor given;  // once read: the frames that a clip begins with, uint8 [n, height, width, 3] of
                 // the result's size; the last ones where there are more than it has

 private:
  void decode_inputs() override;
  void check_task() const;
  void plan_source();
  void plan_size(Log& log);
  void plan_steps();
  void plan_texts(Log& log);
  std::vector<Tensor> read_source();
  // Warns of a clip with so many frames, `text`, that leaves nothing to be made.
  void check_source(const std::string& text, std::int64_t frames) const;

  Log& log_;
  InputItem source_;                           // the picture or clip
  std::optional<std::int64_t> source_frames_;  // of a clip whose container says it
};

}  // namespace diptych
