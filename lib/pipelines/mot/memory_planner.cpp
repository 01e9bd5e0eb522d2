#include "lib/pipelines/mot/memory_planner.h"

#include <algorithm>
#include <limits>

#include "lib/config/family_config.h"
#include "lib/ops/linear_operand.h"
#include "lib/pipelines/mot/step_capture.h"

namespace diptych {
namespace {

void raise(std::int64_t& most, std::int64_t value) {
  most = std::max(most, value);
}

// Of the family's autoencoder.
bool has_strips(const RunConfig& config) {
  return config.family == nullptr || config.family->uses("vae_tiling");
}

}  // namespace

MotLoadedParts operator|(MotLoadedParts a, MotLoadedParts b) {
  return {a.vision || b.vision, a.head || b.head};
}

MotMemoryPlanner::MotMemoryPlanner(const RunConfig& config, const MotCheckpoint& checkpoint,
                                   const std::optional<OpenedDrafter>& drafter,
                                   const Runtime& runtime)
    : config_(config),
      checkpoint_(checkpoint),
      drafter_(drafter),
      runtime_(runtime),
      stage_(role_of(config.stage_end)),
      budget_(MemoryBudget::of(config.max_vram, runtime)),
      checkpoint_sizes_(checkpoint.sizes()) {
  if (runtime.device.is_cpu()) mapped_ = checkpoint.mapped();
}

void MotMemoryPlanner::plan_loading(MotJobs jobs, MotLoadedParts parts, bool others) {
  const auto kept = [](const MemoryPlan& plan) {
    const std::optional<OffloadChoice>& offload = plan.choice.offload;
    return offload ? offload->resident : std::numeric_limits<std::int64_t>::max();
  };
  MemoryPlan plan = fit_memory(mot_costs(sizes(parts, jobs), work_of(jobs, 0)),
                               wishes(jobs.front()->config()), budget_);
  if (!others || kept(plan) < kept(plan_)) plan_ = std::move(plan);
}

void MotMemoryPlanner::plan_run(MotJobs jobs, std::int64_t kept_rows) {
  const MotLoadedParts loaded = {checkpoint_.has_vision(),
                                 checkpoint_.mot().backbone.lm_head.defined()};
  const MotLoadedParts parts = needed_parts(jobs) | loaded;
  plan_ = refit_memory(mot_costs(sizes(parts, jobs), work_of(jobs, kept_rows)),
                       wishes(jobs.front()->config()), budget_, plan_.choice.offload);
}

std::int64_t MotMemoryPlanner::room_beside_kept_step() const {
  if (!budget_.device) return std::numeric_limits<std::int64_t>::max();
  return *budget_.device - kCudaBytes - plan_.peak_with_kept_step();
}

// The most that these requests do at once.
MotWork MotMemoryPlanner::work_of(MotJobs jobs, std::int64_t kept_rows) const {
  MotWork work;
  const std::int64_t step = pixels_per_row();
  for (const MotJob* job : jobs) {
    raise(work.width, job->size().w * step);
    raise(work.height, job->size().h * step);
    raise(work.latent_frames, job->size().t);
    raise(work.frames, job->decoded_frames);
    for (const InputWork& input : job->input_work) {
      raise(work.vision_patches, input.patches);
      raise(work.encoded.width, input.encoded.width);
      raise(work.encoded.height, input.encoded.height);
      raise(work.encoded.frames, input.encoded.frames);
    }
    raise(work.text_rows, text_rows(*job, kept_rows) + (job->writes() ? block_of(*job) - 1 : 0));
  }
  work.samples = std::ssize(jobs);
  work.steps = jobs.front()->config().sampling.steps;
  add_contexts(work, jobs);
  work.cache_bytes = cache_bytes(work, *jobs.front());
  const auto is_math = [](const StageBackends& stage) {
    return stage.of(AttentionRole::self).name() == "math";
  };
  work.writes_logits = is_math(runtime_.read_attention) || is_math(runtime_.paint_attention);
  work.two_graphs = captures_two_kinds(*jobs.front());
  work.paints = stage_ != StageRole::reads;
  if (stage_ == StageRole::paints) work.prefill_rows = work.vision_patches = work.text_rows = 0;
  if (!work.paints) {
    work.cache_bytes = 0;
    work.two_graphs = false;
  }
  return work;
}

std::int64_t MotMemoryPlanner::text_rows(const MotJob& job, std::int64_t kept) {
  if (!job.writes()) return kept;
  const std::int64_t context = job.branches.front().samples.front().length();
  return context + std::max(kept, TextWriter::capacity_for(context + job.text.max_tokens));
}

// Whether guidance begins or ends on the way, in steps that are captured. Nobody looks into those.
bool MotMemoryPlanner::captures_two_kinds(const MotJob& job) const {
  if (job.answers() || job.is_traced() || job.records_steps) return false;
  const PaintRequest& paint = job.paint;
  if (paint.caches() || !runtime_.device.is_cuda() ||
      !captures_steps(paint, checkpoint_.mot(), runtime_))
    return false;
  std::int64_t guided = 0;
  for (std::int64_t i = 0; i < paint.schedule.updates(); ++i) guided += paint.terms_in(i) > 0;
  return guided > 0 && guided < paint.schedule.updates();
}

// What the guidance branches read.
void MotMemoryPlanner::add_contexts(MotWork& work, MotJobs jobs) const {
  std::int64_t plan_tokens = 0;
  for (const MotJob* job : jobs) {
    // The plan is read between its markers.
    if (job->config().think && !job->answers()) raise(plan_tokens, job->text.max_tokens + 2);
  }
  const MotJob& first = *jobs.front();
  const std::size_t count = first.answers() ? 1 : first.branches.size();
  // Branches that every job reads alike share one context.
  const auto share = [&](std::size_t a, std::size_t b) {
    return std::ranges::all_of(
        jobs, [&](const MotJob* job) { return job->branches[a].shares_with(job->branches[b]); });
  };
  work.branches = 0;
  for (std::size_t b = 0; b < count; ++b) {
    bool is_shared = false;
    for (std::size_t a = 0; a < b && !is_shared; ++a) is_shared = share(a, b);
    work.branches += is_shared ? 0 : 1;
    for (const MotJob* job : jobs) {
      const MotContext& context = job->branches[b].samples.front();
      raise(work.context_tokens, context.length());
      for (std::size_t i = 0; i < context.segments.size(); ++i) {
        raise(work.prefill_rows, context.length_before(i + 1) - context.length_before(i));
      }
    }
  }
  work.context_tokens += plan_tokens;
}

// What a step cache, or the recorder, keeps of each context between steps.
std::int64_t MotMemoryPlanner::cache_bytes(const MotWork& work, const MotJob& job) const {
  const std::int64_t kept =
      kept_rows(job.records_steps ? StepCacheMode::teacache : job.paint.step_cache.mode);
  const std::int64_t step = pixels_per_row();
  const std::int64_t rows =
      work.samples * work.latent_frames * (work.width / step) * (work.height / step);
  return kept * work.branches * rows * checkpoint_.mot().backbone.config.hidden_size *
         static_cast<std::int64_t>(c10::elementSize(runtime_.dtype));
}

// Tokens that are checked at once.
std::int64_t MotMemoryPlanner::block_of(const MotJob& job) const {
  return drafted_block(drafter_ ? &*drafter_ : nullptr, job.text.block_size);
}

// The largest block of these texts; it is loaded with the head.
std::optional<DrafterCosts> MotMemoryPlanner::drafter_costs(MotJobs jobs) const {
  if (!drafter_) return std::nullopt;
  const BlockDrafterConfig& config = drafter_->config();
  const QwenConfig& layers = config.decoder;
  const auto element = static_cast<std::int64_t>(c10::elementSize(runtime_.dtype));
  DrafterCosts costs;
  costs.features = config.feature_width() * element;
  costs.row = 2 * layers.num_hidden_layers * layers.kv_width() * element;
  costs.weights = layers.hidden_size * costs.features +
                  layers.num_hidden_layers *
                      QwenLayer::matrix_bytes(layers, {runtime_.dtype, runtime_.quantization});
  for (const MotJob* job : jobs) {
    raise(costs.block, block_of(*job));
    costs.samples = costs.samples || (job->writes() && job->text.sampling.temperature > 0);
  }
  return costs;
}

MotSizes MotMemoryPlanner::sizes(MotLoadedParts parts, MotJobs jobs) const {
  MotSizes sizes = checkpoint_sizes_;
  sizes.dtype = runtime_.dtype;
  sizes.parts = parts;
  sizes.has_strips = has_strips(config_);
  sizes.quantization = runtime_.quantization;
  sizes.reference_kernels = runtime_.device.is_cpu() || runtime_.kernels == KernelPolicy::reference;
  sizes.mapped = mapped_;
  if (parts.head) sizes.drafter = drafter_costs(jobs);
  if (sizes.quantization == Quantization::none) {
    const at::TensorOptions options = at::TensorOptions(runtime_.device).dtype(runtime_.dtype);
    sizes.gates_at_once = [options, llm = sizes.llm,
                           kernels = runtime_.kernels](std::int64_t rows) {
      return gates_in_one_kernel(options, rows, llm.intermediate_size, llm.hidden_size, kernels);
    };
  }
  return sizes;
}

MemoryWishes MotMemoryPlanner::wishes(const RunConfig& config) const {
  MemoryWishes wishes;
  wishes.offload = config_.offload;
  wishes.tiling = has_strips(config) ? config.vae_tiling : TilingWish::off;
  if (config.cfg_mode) wishes.batched = config.cfg_mode == CfgMode::batched;
  return wishes;
}

}  // namespace diptych
