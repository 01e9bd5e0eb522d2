#include "lib/pipelines/bagel/memory_planner.h"

#include <algorithm>
#include <limits>

#include "lib/base/error.h"
#include "lib/pipelines/bagel/settings.h"
#include "lib/runtime/host_memory.h"

namespace diptych {
namespace {

void raise(std::int64_t& most, std::int64_t value) {
  most = std::max(most, value);
}

MemoryBudget memory_budget(double max_vram, at::Device device) {
  MemoryBudget budget;
  budget.host = available_host_memory();
  if (!device.is_cuda()) {
    if (max_vram > 0)
      throw InputError(Setting::of("max_vram"), "is of a GPU, the run is on the CPU");
    return budget;
  }
  budget.limited = max_vram > 0;
  constexpr double kGib = 1 << 30;
  const auto free = free_gpu_memory(static_cast<std::size_t>(device.index()));
  if (free) budget.device = static_cast<std::int64_t>(*free) + kCudaBytes;  // it has its context
  if (budget.limited) {
    const auto allowed = static_cast<std::int64_t>(max_vram * kGib);
    if (budget.device && *budget.device < allowed) {
      throw InputError(Setting::of("max_vram"), "found {} GiB, but {:.1f} GiB are free", max_vram,
                       static_cast<double>(*budget.device) / kGib);
    }
    budget.device = allowed;
  }
  return budget;
}

}  // namespace

void BagelParts::add(std::span<const RunConfig> configs) {
  for (const RunConfig& config : configs) {
    vision |= config.reads_images();
    head |= config.answers() || config.think;
  }
}

BagelParts BagelParts::of(std::span<const RunConfig> configs) {
  BagelParts parts;
  parts.add(configs);
  return parts;
}

BagelParts BagelParts::of(std::span<const BagelPrepared> prepared) {
  BagelParts parts;
  for (const BagelPrepared& p : prepared) parts.add(std::span(p.config, 1));
  return parts;
}

BagelMemoryPlanner::BagelMemoryPlanner(const RunConfig& config, const BagelCheckpoint& checkpoint,
                                       const Runtime& runtime)
    : config_(config),
      checkpoint_(checkpoint),
      runtime_(runtime),
      budget_(memory_budget(config.max_vram, runtime.device)) {}

void BagelMemoryPlanner::plan_loading(std::span<const BagelPrepared> prepared, BagelParts parts,
                                      bool others) {
  const auto kept = [](const BagelMemory& memory) {
    const std::optional<MotOffload>& offload = memory.choice.offload;
    return offload ? offload->resident_und + offload->resident_gen
                   : std::numeric_limits<std::int64_t>::max();
  };
  BagelMemory memory = fit_bagel_memory(sizes(parts), work_of(prepared, 0),
                                        wishes(*prepared.front().config), budget_);
  if (!others || kept(memory) < kept(plan_)) plan_ = std::move(memory);
}

void BagelMemoryPlanner::plan_run(std::span<const BagelPrepared> prepared, std::int64_t kept_rows) {
  BagelParts parts = BagelParts::of(prepared);
  parts.vision |= checkpoint_.model.vision.has_value();
  parts.head |= checkpoint_.model.language_model.lm_head.defined();
  plan_ = refit_bagel_memory(sizes(parts), work_of(prepared, kept_rows),
                             wishes(*prepared.front().config), budget_, plan_.choice.offload);
}

std::int64_t BagelMemoryPlanner::room_beside_kept_step() const {
  if (!budget_.device) return std::numeric_limits<std::int64_t>::max();
  return *budget_.device - kCudaBytes - plan_.peak_with_kept_step();
}

// The most that these requests do at once.
BagelWork BagelMemoryPlanner::work_of(std::span<const BagelPrepared> prepared,
                                      std::int64_t kept_rows) const {
  BagelWork work;
  const std::int64_t step = checkpoint_.model.config.pixels_per_row();
  for (const BagelPrepared& p : prepared) {
    raise(work.width, p.size.w * step);
    raise(work.height, p.size.h * step);
    for (const BagelImage& image : p.request.images) {
      raise(work.vision_patches, image.patches.rows());
      if (p.request.answers) continue;
      raise(work.encode_width, image.latent.w * step);
      raise(work.encode_height, image.latent.h * step);
    }
    raise(work.text_rows, p.request.text_rows(checkpoint_, kept_rows));
  }
  work.samples = static_cast<std::int64_t>(prepared.size());
  work.steps = prepared.front().config->sampling.steps;
  add_contexts(work, prepared);
  work.cache_bytes = cache_bytes(work, prepared.front());
  const auto is_math = [](const auto& backend) { return backend->name() == "math"; };
  work.writes_logits = is_math(runtime_.read_attention) || is_math(runtime_.paint_attention);
  work.two_graphs = captures_two_kinds(prepared);
  return work;
}

// Whether guidance begins or ends on the way, in steps that are captured. Nobody looks into those.
bool BagelMemoryPlanner::captures_two_kinds(std::span<const BagelPrepared> prepared) const {
  const RunConfig& config = *prepared.front().config;
  if (config.answers() || !config.trace.empty() || prepared.front().records) return false;
  const PaintRequest paint = paint_request_of(prepared);
  if (paint.caches() || !runtime_.device.is_cuda() || !captures_steps(paint, checkpoint_, runtime_))
    return false;
  const FlowSchedule schedule = paint.schedule();
  const auto updated =
      std::span(schedule.times).first(static_cast<std::size_t>(schedule.updates()));
  const auto guided =
      std::ranges::count_if(updated, [&](float t) { return paint.guidance.uses_text(t); });
  return guided > 0 && guided < schedule.updates();
}

// What the guidance branches read.
void BagelMemoryPlanner::add_contexts(BagelWork& work,
                                      std::span<const BagelPrepared> prepared) const {
  std::vector<BagelReading> readings;
  std::int64_t plan_tokens = 0;
  for (const BagelPrepared& p : prepared) {
    readings.push_back(p.request.reading(checkpoint_));
    // The plan is read between its markers.
    if (p.request.think && !p.request.answers) raise(plan_tokens, p.request.text.max_tokens + 2);
  }
  const RunConfig& config = *prepared.front().config;
  std::vector<BranchContexts> branches = BagelReading::branches(readings);
  if (config.answers()) {
    branches.resize(1);
  } else {
    branches = paint_request_of(prepared).needed(std::move(branches), !config.trace.empty());
  }
  std::vector<const BranchContexts*> distinct;
  for (const BranchContexts& branch : branches) {
    const auto shares = [&](const BranchContexts* other) { return other->shares_with(branch); };
    if (std::ranges::none_of(distinct, shares)) distinct.push_back(&branch);
    for (const BagelContext& context : branch.samples) {
      raise(work.context_tokens, context.length());
      for (std::size_t i = 0; i < context.segments.size(); ++i) {
        raise(work.prefill_rows, context.length_before(i + 1) - context.length_before(i));
      }
    }
  }
  work.branches = static_cast<std::int64_t>(distinct.size());
  work.context_tokens += plan_tokens;
}

// What a step cache, or the recorder, keeps of each context between steps.
std::int64_t BagelMemoryPlanner::cache_bytes(const BagelWork& work, const BagelPrepared& p) const {
  constexpr std::int64_t kFactors = 7;  // of TaylorSeer: the value and six differences
  const StepCacheMode mode = p.config->cache_mode;
  const std::int64_t kept = mode == StepCacheMode::taylorseer              ? kFactors
                            : mode == StepCacheMode::teacache || p.records ? 2
                                                                           : 0;
  const BagelConfig& model = checkpoint_.model.config;
  const std::int64_t rows =
      work.samples * (work.width / model.pixels_per_row()) * (work.height / model.pixels_per_row());
  return kept * work.branches * rows * model.llm.hidden_size *
         static_cast<std::int64_t>(c10::elementSize(runtime_.dtype));
}

BagelSizes BagelMemoryPlanner::sizes(BagelParts parts) const {
  return {checkpoint_.model.config,
          checkpoint_.vae.config,
          runtime_.dtype,
          parts.vision,
          parts.head,
          runtime_.quantization,
          runtime_.kernels == KernelPolicy::reference};
}

BagelMemoryWishes BagelMemoryPlanner::wishes(const RunConfig& config) const {
  BagelMemoryWishes wishes;
  wishes.offload = config_.offload;
  wishes.tiling = config.vae_tiling;
  if (config.cfg_mode) wishes.batched = config.cfg_mode == CfgMode::batched;
  return wishes;
}

}  // namespace diptych
