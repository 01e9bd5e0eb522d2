#include "lib/pipelines/bagel/memory_planner.h"

#include <algorithm>
#include <limits>

#include "lib/pipelines/bagel/settings.h"

namespace diptych {
namespace {

void raise(std::int64_t& most, std::int64_t value) {
  most = std::max(most, value);
}

}  // namespace

void BagelParts::add(const BagelJob& job) {
  vision |= job.config().reads_images();
  head |= job.writes();
}

BagelParts BagelParts::of(BagelJobs jobs) {
  BagelParts parts;
  for (const BagelJob* job : jobs) parts.add(*job);
  return parts;
}

BagelMemoryPlanner::BagelMemoryPlanner(const RunConfig& config, const BagelCheckpoint& checkpoint,
                                       const Runtime& runtime)
    : config_(config),
      checkpoint_(checkpoint),
      runtime_(runtime),
      budget_(MemoryBudget::of(config.max_vram, runtime)) {
  if (runtime.device.is_cpu()) mapped_ = checkpoint.mapped();
}

void BagelMemoryPlanner::plan_loading(BagelJobs jobs, BagelParts parts, bool others) {
  const auto kept = [](const MemoryPlan& plan) {
    const std::optional<OffloadChoice>& offload = plan.choice.offload;
    return offload ? offload->resident : std::numeric_limits<std::int64_t>::max();
  };
  MemoryPlan plan = fit_memory(bagel_costs(sizes(parts), work_of(jobs, 0)),
                               wishes(jobs.front()->config()), budget_);
  if (!others || kept(plan) < kept(plan_)) plan_ = std::move(plan);
}

void BagelMemoryPlanner::plan_run(BagelJobs jobs, std::int64_t kept_rows) {
  BagelParts parts = BagelParts::of(jobs);
  parts.vision |= checkpoint_.model.vision.has_value();
  parts.head |= checkpoint_.model.language_model.lm_head.defined();
  plan_ = refit_memory(bagel_costs(sizes(parts), work_of(jobs, kept_rows)),
                       wishes(jobs.front()->config()), budget_, plan_.choice.offload);
}

std::int64_t BagelMemoryPlanner::room_beside_kept_step() const {
  if (!budget_.device) return std::numeric_limits<std::int64_t>::max();
  return *budget_.device - kCudaBytes - plan_.peak_with_kept_step();
}

// The most that these requests do at once.
BagelWork BagelMemoryPlanner::work_of(BagelJobs jobs, std::int64_t kept_rows) const {
  BagelWork work;
  const std::int64_t step = checkpoint_.model.config.pixels_per_row();
  for (const BagelJob* job : jobs) {
    raise(work.width, job->size().w * step);
    raise(work.height, job->size().h * step);
    for (const BagelImage& image : job->images) {
      raise(work.vision_patches, image.patches.rows());
      if (job->answers()) continue;
      raise(work.encode_width, image.latent.w * step);
      raise(work.encode_height, image.latent.h * step);
    }
    raise(work.text_rows, text_rows(*job, kept_rows));
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
  return work;
}

std::int64_t BagelMemoryPlanner::text_rows(const BagelJob& job, std::int64_t kept) {
  if (!job.writes()) return kept;
  const std::int64_t context = job.reading.conditional().length();
  return context + std::max(kept, TextWriter::capacity_for(context + job.text.max_tokens));
}

// Whether guidance begins or ends on the way, in steps that are captured. Nobody looks into those.
bool BagelMemoryPlanner::captures_two_kinds(const BagelJob& job) const {
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
void BagelMemoryPlanner::add_contexts(BagelWork& work, BagelJobs jobs) const {
  std::vector<BagelReading> readings;
  std::int64_t plan_tokens = 0;
  for (const BagelJob* job : jobs) {
    readings.push_back(job->reading);
    // The plan is read between its markers.
    if (job->config().think && !job->answers()) raise(plan_tokens, job->text.max_tokens + 2);
  }
  const BagelJob& first = *jobs.front();
  std::vector<BranchContexts> branches = BagelReading::branches(readings);
  if (first.answers()) {
    branches.resize(1);
  } else {
    branches = first.paint.needed(std::move(branches), first.is_traced());
  }
  std::vector<const BranchContexts*> distinct;
  for (const BranchContexts& branch : branches) {
    const auto shares = [&](const BranchContexts* other) { return other->shares_with(branch); };
    if (std::ranges::none_of(distinct, shares)) distinct.push_back(&branch);
    for (const MotContext& context : branch.samples) {
      raise(work.context_tokens, context.length());
      for (std::size_t i = 0; i < context.segments.size(); ++i) {
        raise(work.prefill_rows, context.length_before(i + 1) - context.length_before(i));
      }
    }
  }
  work.branches = std::ssize(distinct);
  work.context_tokens += plan_tokens;
}

// What a step cache, or the recorder, keeps of each context between steps.
std::int64_t BagelMemoryPlanner::cache_bytes(const BagelWork& work, const BagelJob& job) const {
  constexpr std::int64_t kFactors = 7;  // of TaylorSeer: the value and six differences
  const StepCacheMode mode = job.paint.step_cache.mode;
  const std::int64_t kept = mode == StepCacheMode::taylorseer                      ? kFactors
                            : mode == StepCacheMode::teacache || job.records_steps ? 2
                                                                                   : 0;
  const BagelConfig& model = checkpoint_.model.config;
  const std::int64_t rows =
      work.samples * (work.width / model.pixels_per_row()) * (work.height / model.pixels_per_row());
  return kept * work.branches * rows * model.llm.hidden_size *
         static_cast<std::int64_t>(c10::elementSize(runtime_.dtype));
}

BagelSizes BagelMemoryPlanner::sizes(BagelParts parts) const {
  const bool on_cpu = runtime_.device.is_cpu();
  BagelSizes sizes = {checkpoint_.model.config,
                      checkpoint_.vae.config,
                      runtime_.dtype,
                      parts.vision,
                      parts.head,
                      runtime_.quantization,
                      on_cpu || runtime_.kernels == KernelPolicy::reference};
  sizes.mapped = mapped_;
  return sizes;
}

MemoryWishes BagelMemoryPlanner::wishes(const RunConfig& config) const {
  MemoryWishes wishes;
  wishes.offload = config_.offload;
  wishes.tiling = config.vae_tiling;
  if (config.cfg_mode) wishes.batched = config.cfg_mode == CfgMode::batched;
  return wishes;
}

}  // namespace diptych
