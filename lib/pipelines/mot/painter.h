// The diffusion half on a MoT backbone: prefilled contexts and start noise to the final latent.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "lib/base/log.h"
#include "lib/pipelines/mot/contexts.h"
#include "lib/pipelines/mot/denoiser.h"
#include "lib/pipelines/mot/guided_velocity.h"
#include "lib/pipelines/mot/paint_request.h"
#include "lib/session/cfg_mode.h"
#include "lib/session/denoise_loop.h"

namespace diptych {

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
  // Weights have their places, and may have undefined values until take().
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
  MotModel model_;
  const Runtime& runtime_;
  PaintRequest request_;
  PrefilledContexts contexts_;
  MotDenoiser denoiser_;
  GuidedVelocity guided_;
  DenoiseLoop loop_;
  DenoiseModel denoise_model_;
  bool prepared_ = false;      // and nothing taken yet
  MotTrace* trace_ = nullptr;  // of this picture
  std::string attention_;
  std::string division_ = division_text(runtime_);  // of its steps among ranks
  bool lengths_on_device_ = false;  // AttentionBackend::reads_lengths_on_device(), of the same
};

}  // namespace diptych
