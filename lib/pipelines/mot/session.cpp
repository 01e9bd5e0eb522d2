// Opening a checkpoint, and jobs for it. What comes then: session_load.cpp, session_run.cpp.
#include "lib/pipelines/mot/session.h"

#include <functional>

#include <ATen/Parallel.h>

#include "lib/base/error.h"
#include "lib/config/fields.h"
#include "lib/pipelines/mot/idle_settings.h"
#include "lib/session/make_runtime.h"

namespace diptych {

MotSession::MotSession(const RunConfig& config, const MotOpening& opening, Log& log)
    : config_(config),
      stage_(role_of(config.stage_end)),
      log_(log),
      runtime_(make_runtime(config, log, kSelfAttention,
                            std::bind_front(opening.stored, std::cref(config)))) {
  config_.dtype = runtime_.dtype == at::kBFloat16 ? DtypeChoice::bfloat16 : DtypeChoice::float32;
  reset_peak_memory(runtime_.device);
  report_.device = device_description(runtime_.device);
  report_.dtype = runtime_.dtype == at::kBFloat16 ? "bfloat16" : "float32";
  report_.quantization = name_of(config.quantization);
  report_.tuning = runtime_.tuning.name();
  if (runtime_.device.is_cpu()) report_.threads = at::get_num_threads();
  log.debug("device {}, {}, kernels {}, attention {} and {}", report_.device, report_.dtype,
            name_of(config.kernels), runtime_.read_attention.of(AttentionRole::self).name(),
            runtime_.paint_attention.of(AttentionRole::self).name());
  clock_.start();
  log.mark("the device is chosen");
  config_.load_ahead = config.load_ahead && loads_all();
  checkpoint_ = opening.open(config_, runtime_, log_);
  log.mark("tokenizer and headers are read");
  report_.vae_dtype = checkpoint_->vae_dtype;
  require_attention();
  require_quantizable();
  memory_ = std::make_unique<MotMemoryPlanner>(config_, *checkpoint_, drafter_, runtime_);
  check_offload(config.offload, memory_->budget());
}

// Whether nothing but the device's free memory says where weights lie.
bool MotSession::loads_all() const {
  return config_.max_vram == 0 && config_.offload == OffloadWish::automatic && !stage_ &&
         runtime_.ranks == nullptr;
}

// A backend asked for by name that cannot serve these heads is refused before anything is run.
void MotSession::require_attention() const {
  const AttentionKind kind{runtime_.device, runtime_.dtype, llm_config().head_dim};
  const auto require = [&](const StageBackends& backends, std::string_view field,
                           const StageAttention& stage) {
    const AttentionBackend& backend = backends.of(AttentionRole::self);
    if (const auto reason = backend.kind_unsupported(kind))
      throw InputError(attention_setting(field, stage), "attention backend {}: {}", backend.name(),
                       *reason);
  };
  require(runtime_.read_attention, "read_attention", config_.read_attention);
  require(runtime_.paint_attention, "paint_attention", config_.paint_attention);
}

// Likewise widths that a GPU's products in e4m3 do not take.
void MotSession::require_quantizable() const {
  constexpr std::int64_t kStep = 16;
  if (config_.quantization != Quantization::fp8 || !runtime_.device.is_cuda()) return;
  const QwenConfig& llm = llm_config();
  for (const auto& [key, width] : {std::pair{"hidden_size", llm.hidden_size},
                                   std::pair{"intermediate_size", llm.intermediate_size}}) {
    if (width % kStep != 0)
      throw InputError(Setting::of("quantization", "fp8"),
                       "llm_config.json: {}: found {}, expected a multiple of {}", key, width,
                       kStep);
  }
}

std::unique_ptr<Job> MotSession::make_job(const RunConfig& request) {
  std::unique_ptr<MotJob> job = checkpoint_->make_job(request, runtime_, log_);
  if (job->writes() && !checkpoint_->draft_model.empty() && !drafter_)
    drafter_.emplace(checkpoint_->draft_model, llm_config(),
                     config_.load_format == LoadFormat::dummy, runtime_);
  if (!job->answers()) warn_of_idle_settings(request, job->paint, log_);
  return job;
}

bool MotSession::may_share(const RunConfig& a, const RunConfig& b) const {
  const auto alone = [](const RunConfig& c) {
    // TeaCache decides by all rows of a forward: a picture would depend on what it is packed
    // with.
    return c.answers() || c.sampling.batch_count != 1 || !c.trace.empty() ||
           c.cache_mode == StepCacheMode::teacache;
  };
  return !alone(a) && !alone(b) && may_share_forwards(a, b);
}

Report MotSession::report() const {
  Report report = report_;
  report.steps_per_second = maker_.steps_per_second();
  if (report.token_seconds > 0)
    report.tokens_per_second = static_cast<double>(report.tokens) / report.token_seconds;
  report.peak_bytes = peak_memory_bytes(runtime_.device);
  return report;
}

}  // namespace diptych
