#include "lib/pipelines/mot/painter.h"

#include <functional>
#include <tuple>
#include <utility>

#include <ATen/record_function.h>
#include <fmt/format.h>

#include "lib/pipelines/mot/step_capture.h"
#include "lib/pipelines/mot/trace.h"
#include "lib/session/session.h"

namespace diptych {

MotPainter::MotPainter(const MotModel& model, PaintRequest request, PrefilledContexts contexts,
                       const Runtime& runtime)
    : model_(model),
      runtime_(runtime),
      request_(std::move(request)),
      contexts_(std::move(contexts)),
      denoiser_(model, contexts_, request_.denoised(), request_.schedule, request_.cfg_mode,
                runtime, request_.step_cache),
      guided_(request_, contexts_, denoiser_),
      loop_(request_.schedule, runtime.device),
      denoise_model_(make_denoise_model()) {}

DenoiseModel MotPainter::make_denoise_model() {
  DenoiseModel model;
  model.velocity = [this](const Tensor& x, std::int64_t i) {
    return guided_.at_step(x, i, trace_);
  };
  model.launch_velocity = std::bind_front(&GuidedVelocity::launched, &guided_);
  for (std::int64_t i = 0; i < updates(); ++i)
    model.kinds.push_back(static_cast<std::int64_t>(request_.terms_in(i)));
  return model;
}

bool MotPainter::has_captured(const PaintRequest& request) const {
  const auto steps = [](const PaintRequest& r) {
    return std::tie(r.sizes, r.clean_rows, r.guidance, r.renorm_whole_batch, r.cfg_mode,
                    r.step_graphs, r.schedule.times);
  };
  return loop_.has_kept() && loop_.used_graphs() && !request.caches() &&
         steps(request) == steps(request_) && division_ == division_text(runtime_);
}

bool MotPainter::serves(const PaintRequest& request, const PrefilledContexts& contexts) const {
  return has_captured(request) && contexts_.laid_out_as(contexts) &&
         (contexts_.as_long_as(contexts) || lengths_on_device_);
}

void MotPainter::take(const PrefilledContexts& contexts) {
  contexts_.copy(contexts);
  denoiser_.follow_contexts();
  if (std::exchange(prepared_, false)) denoiser_.follow_weights();
}

void MotPainter::note_attention() {
  const AttentionBackend& backend = runtime_.paint_attention.of(AttentionRole::self);
  attention_ = backend.served_by();
  lengths_on_device_ = backend.reads_lengths_on_device();
}

void MotPainter::prepare() {
  runtime_.paint_attention.of(AttentionRole::self).forget_served();
  denoiser_.begin_picture();
  loop_.prepare(denoise_model_, {request_.rows(), row_width()});
  note_attention();
  prepared_ = true;
}

Tensor MotPainter::paint(const Tensor& noise, MotTrace* trace, Progress& progress,
                         StepCaching caching) {
  trace_ = trace;
  if (trace != nullptr) trace->start({contexts_, model_, request_.sizes, request_.schedule, noise});
  if (attention_.empty()) runtime_.paint_attention.of(AttentionRole::self).forget_served();
  RECORD_USER_SCOPE(kDenoiseScope);
  denoiser_.begin_picture(caching, trace);
  progress.begin("denoise", updates());
  const bool captures = all_capture(request_, model_, runtime_);
  const DenoiseLoop::OnDevice how = {.graphs = captures, .keep = request_.keep_graphs};
  TraceSink* const sink = trace == nullptr ? nullptr : &trace->sink();
  Tensor latent;
  if (denoiser_.is_plain()) {
    latent = loop_.run_on_device(denoise_model_, noise, how, progress);
    for (const std::int64_t terms : denoise_model_.kinds)
      denoiser_.count_forwards(
          contexts_of(static_cast<std::size_t>(terms), request_.guidance, contexts_));
  } else {
    latent = loop_.run_by_step(denoise_model_, noise, sink, progress);
  }
  synchronize(runtime_.device);
  progress.end();
  if (attention_.empty()) note_attention();
  return latent;
}

}  // namespace diptych
