// The diffusion half of BAGEL: prefilled contexts and start noise to pictures.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "lib/base/log.h"
#include "lib/pipelines/mot/contexts.h"
#include "lib/pipelines/mot/denoiser.h"
#include "lib/runtime/launch_graphs.h"
#include "lib/sampling/branches.h"

namespace diptych {

struct PaintRequest {
  std::vector<LatentSize> sizes;  // one per picture of the packed batch
  Guidance guidance;
  // The `global` renorm takes its norms over each picture alone, so that a picture does not depend
  // on what it is packed with. The official code's batches take them over all pictures.
  bool renorm_whole_batch = false;
  CfgMode cfg_mode = CfgMode::batched;
  bool step_graphs = true;  // on CUDA, where a step can be captured
  // Between the pictures of a painter and the requests that it serves, with the memory of a step.
  bool keep_graphs = false;
  StepCacheConfig step_cache;
  std::int64_t steps = 50;
  double timestep_shift = 3.0;

  FlowSchedule schedule() const { return FlowSchedule::shifted(steps, timestep_shift); }
  bool caches() const { return step_cache.mode != StepCacheMode::none; }
  std::vector<std::int64_t> block_rows() const;  // per picture: latent rows and two markers
  // The branches of `all` (cond, text_uncond, img_uncond) that guidance asks for at some step; all
  // of them for a trace, which names them like the official code's.
  std::vector<BranchContexts> needed(std::vector<BranchContexts> all, bool tracing) const;
};

// How many of the distinct contexts, from the first on, guidance asks for at t.
std::int64_t contexts_at(float t, const Guidance& guidance, const PrefilledContexts& contexts);

// Whether a denoise step of this request runs as a CUDA graph where there are graphs
// (make_launch_graphs) and nothing looks into its steps (BagelDenoiser::is_plain).
bool captures_steps(const PaintRequest& request, const BagelCheckpoint& checkpoint,
                    const Runtime& runtime);

// Every call of paint() starts from another noise.
class BagelPainter {
 public:
  BagelPainter(const BagelCheckpoint& checkpoint, PaintRequest request, PrefilledContexts contexts,
               const Runtime& runtime);
  BagelPainter(const BagelPainter&) = delete;
  BagelPainter& operator=(const BagelPainter&) = delete;
  // noise float32 [rows of all pictures, 64] on the CPU -> the final latent likewise, on the
  // device. `caching` as BagelDenoiser::begin_picture.
  Tensor paint(const Tensor& noise, Progress& progress, StepCaching caching = StepCaching::on);
  // latent rows -> one image [1, 3, H, W] per picture, float32, not clamped.
  std::vector<Tensor> decode(const Tensor& latent) const;
  // Whether the steps that this one has captured are those of `request`, but for its contexts.
  bool has_captured(const PaintRequest& request) const;
  // Whether what is captured serves, after take(contexts).
  bool serves(const PaintRequest& request, const PrefilledContexts& contexts) const;
  // Paints with these from now on, which serve.
  void take(const PrefilledContexts& contexts);
  void observe(StepObserver observer) { denoiser_.observe(std::move(observer)); }
  const PaintRequest& request() const { return request_; }
  const PrefilledContexts& contexts() const { return contexts_; }
  std::int64_t distinct_contexts() const { return contexts_.distinct(); }
  std::int64_t row_width() const { return checkpoint_.model.config.row_width(); }  // of the latent
  std::int64_t forwards() const { return denoiser_.forwards(); }
  bool used_graphs() const { return used_graphs_; }  // by the last paint(), for a step or more
  // The attention backends that served the first paint(), "" before it: a replay calls none.
  const std::string& attention() const { return attention_; }
  std::int64_t updates() const { return schedule_.updates(); }

 private:
  // What a step computes: the branches up to the last that guidance asks for at its t.
  struct StepKind {
    bool text = false, image = false;  // which guidance acts
    std::int64_t contexts = 1;
  };
  // All that changes from one step to the next, and the steps that read it where it is.
  struct DeviceSteps {
    Tensor x;                              // the latent, float32 [rows of all pictures, 64]
    Tensor step;                           // int64 [1]: which one comes next
    Tensor sizes;                          // float32 [updates]
    std::unique_ptr<LaunchGraphs> graphs;  // null where steps are launched one by one
  };
  DeviceSteps make_device_steps() const;
  void update(const DeviceSteps& steps, const StepKind& kind) const;
  // All of a picture's: those of one kind that follow each other are one work.
  std::vector<RepeatedWork> plan_updates(const DeviceSteps& steps) const;
  StepKind kind_of(float t) const;
  Tensor guided_velocity(const Tensor& x, std::int64_t step) const;
  Tensor guide(const std::vector<Tensor>& v, const StepKind& kind) const;
  Tensor integrate_by_step(const Tensor& noise, Progress& progress) const;
  Tensor integrate_on_device(const Tensor& noise, Progress& progress);
  Tensor combine(const Tensor& cond, const Tensor& text, const Tensor& image) const;

  const BagelCheckpoint& checkpoint_;
  const Runtime& runtime_;
  PaintRequest request_;
  FlowSchedule schedule_;
  PrefilledContexts contexts_;
  BagelDenoiser denoiser_;
  std::optional<DeviceSteps> steps_;  // kept, or of the picture that is being painted
  bool used_graphs_ = false;
  std::string attention_;
  bool lengths_on_device_ = false;  // AttentionBackend::reads_lengths_on_device(), of the same
};

}  // namespace diptych
