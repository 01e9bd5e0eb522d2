// The diffusion half on a MoT backbone: prefilled contexts and start noise to the final latent.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "lib/base/log.h"
#include "lib/pipelines/mot/contexts.h"
#include "lib/pipelines/mot/denoiser.h"
#include "lib/sampling/branches.h"
#include "lib/session/cfg_mode.h"
#include "lib/session/denoise_loop.h"

namespace diptych {

struct PaintRequest {
  std::vector<LatentSize> sizes;  // one per picture of the packed batch
  // Likewise: its first rows that are given without noise (DenoisedRows). Empty: none of any.
  std::vector<std::int64_t> clean_rows;
  Guidance guidance;
  // The `global` renorm takes its norms over each picture alone, so that a picture does not depend
  // on what it is packed with. The official code's batches take them over all pictures.
  bool renorm_whole_batch = false;
  CfgMode cfg_mode = CfgMode::batched;
  bool step_graphs = true;  // on CUDA, where a step can be captured
  // Between the pictures of a painter and the requests that it serves, with the memory of a step.
  bool keep_graphs = false;
  StepCacheConfig step_cache;
  FlowSchedule schedule;

  DenoisedRows denoised() const { return {sizes, clean_rows}; }
  bool caches() const { return step_cache.mode != StepCacheMode::none; }
  std::int64_t rows() const;                     // latent rows of all pictures
  std::vector<std::int64_t> block_rows() const;  // per picture: latent rows and two markers
  // How many terms of guidance act in step i.
  std::size_t terms_in(std::int64_t i) const;
  // Of the branches (cond first) cond and those that guidance asks for at some step; all of them
  // for a trace, which names them like the official code's.
  std::vector<BranchContexts> needed(std::vector<BranchContexts> all, bool tracing) const;
};

// How many of the distinct contexts, from the first on, the first `terms` terms of guidance need.
std::int64_t contexts_of(std::size_t terms, const Guidance& guidance,
                         const PrefilledContexts& contexts);

// Whether a denoise step of this request runs as a CUDA graph where there are graphs
// (make_launch_graphs) and nothing looks into its steps (MotDenoiser::is_plain).
bool captures_steps(const PaintRequest& request, const MotModel& model, const Runtime& runtime);
// Whether every rank that shares the request captures: memory decides, and theirs may differ.
// `own`: captures_steps() of this one. All of them call it.
bool all_capture(const Runtime& runtime, bool own);

class MotPainter {
 public:
  MotPainter(const MotModel& model, PaintRequest request, PrefilledContexts contexts,
             const Runtime& runtime);
  MotPainter(const MotPainter&) = delete;
  MotPainter& operator=(const MotPainter&) = delete;
  // noise float32 [rows of all pictures, row width] -> the final latent likewise, on the device.
  // Rows without noise hold what they are. Every call starts from another noise. `trace`: null:
  // off. `caching`: as MotDenoiser::begin_picture.
  Tensor paint(const Tensor& noise, MotTrace* trace, Progress& progress,
               StepCaching caching = StepCaching::on);
  // Captures the steps ahead of the first picture, where captures_steps(), and keeps them for it.
  void prepare();
  // Whether the steps that this one has captured are those of `request`, but for its contexts.
  bool has_captured(const PaintRequest& request) const;
  // Whether what is captured serves, after take(contexts).
  bool serves(const PaintRequest& request, const PrefilledContexts& contexts) const;
  // Paints with these from now on, which serve.
  void take(const PrefilledContexts& contexts);
  void observe(StepObserver observer) { denoiser_.observe(std::move(observer)); }
  const PaintRequest& request() const { return request_; }
  const PrefilledContexts& contexts() const { return contexts_; }
  std::int64_t row_width() const { return model_.latents.width; }
  std::int64_t forwards() const { return denoiser_.forwards(); }
  bool used_graphs() const { return loop_.used_graphs(); }  // by the last paint()
  // The attention backends that served the first steps, "" before them: a replay calls none.
  const std::string& attention() const { return attention_; }
  std::int64_t updates() const { return request_.schedule.updates(); }

 private:
  DenoiseModel make_denoise_model();
  void note_attention();
  Tensor guided_velocity(const Tensor& x, std::int64_t step) const;
  Tensor guide(const std::vector<Tensor>& v, std::size_t terms) const;
  Tensor combine(const Tensor& cond, std::span<const Tensor> branches) const;
  MotModel model_;
  const Runtime& runtime_;
  PaintRequest request_;
  PrefilledContexts contexts_;
  MotDenoiser denoiser_;
  DenoiseLoop loop_;
  DenoiseModel denoise_model_;
  MotTrace* trace_ = nullptr;  // of this picture
  std::string attention_;
  std::string division_ = division_text(runtime_);  // of its steps among ranks
  bool lengths_on_device_ = false;  // AttentionBackend::reads_lengths_on_device(), of the same
};

}  // namespace diptych
