// The trace names of Lance, as its golden data has them (goldens/lance).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "lib/models/qwen/vision.h"
#include "lib/models/wan_vae/wan_vae.h"
#include "lib/pipelines/mot/trace.h"

namespace diptych {

struct LanceJob;

class LanceTrace final : public MotTrace {
 public:
  // `job` must outlive it.
  LanceTrace(TraceSink& sink, const LanceJob& job) : MotTrace(sink), job_(job) {}

  // "prefill.<branch>.segNN"; the calls of each branch are counted on their own.
  std::string call_name(const BranchContexts& branch, std::size_t segment) const override;
  std::string row_name(std::string_view what) const override;
  bool shows_keys() const override { return true; }
  // tokens.*, pos.*, prefill.*.range and .position_ids, kv.*
  void contexts(const PrefilledContexts& contexts) override;
  void start(const TracedStart& start) override;  // schedule.*, latent.initial, *.timestep
  void step_inputs(std::int64_t step, const Tensor& time, const Tensor& projected) override;
  void step_positions(std::int64_t, const BranchContexts&, std::span<const LatentSize>) override {}
  void velocities(const TracedVelocities& velocities) override;
  std::unique_ptr<MotTextTrace> text(const KvCache& cache, std::int64_t position) override;

  // vae.cond.*; latent [t, h, w, row width].
  void source(const WanVaeMoments& moments, const Tensor& latent);
  // vit.* of these patches [n, patch_width].
  QwenVisionObserver vision(const Tensor& patches, const VisionGrid& grid);
  // vae_decode.*, output.*: frames [3, n, H, W], shown uint8 [n, H, W, 3], chunk by chunk.
  void decoded(const Tensor& frames, const Tensor& shown);
  void finish_decoding();

 private:
  void record_tokens() const;
  void record_positions() const;
  void record_calls(const BranchContexts& branch) const;

  const LanceJob& job_;
  Tensor source_;                       // float32 [rows, row width]
  std::vector<Tensor> frames_, shown_;  // so far
};

}  // namespace diptych
