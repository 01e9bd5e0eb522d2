#include "lib/pipelines/mot/job.h"

#include "lib/base/error.h"
#include "lib/pipelines/mot/text_decoder.h"
#include "lib/tensor/noise.h"

namespace diptych {

MotTurn::MotTurn(const MotJob& job)
    : generator(cpu_generator(job.config().sampling.seed)), branches(job.branches), job_(&job) {}

void MotTurn::reseed(std::uint64_t seed) {
  generator = cpu_generator(seed);
}

void MotTurn::seed(std::uint64_t seed) {
  reseed(seed);
  branches = job_->branches;
  plan.reset();
  plan_finish_reason.clear();
  plan_ids.clear();
}

void check_positions(const MotJob& job, const std::vector<BranchContexts>& branches, bool planned,
                     const MotModel& model) {
  if (job.answers() || (job.config().think && !planned)) {
    check_text_positions(branches.front().samples.front(), job.text,
                         job.answers() ? "answer" : "think", model);
  }
  if (job.answers()) return;
  const std::int64_t most = model.backbone.config.max_position_embeddings;
  for (const BranchContexts& branch : branches) {
    const std::int64_t position = branch.samples.front().position();  // of the picture
    if (position < most) continue;
    throw InputError(Setting::of(planned ? "max_think_tokens" : "prompt"),
                     "{} positions are read in all, expected at most {}", position, most - 1);
  }
}

void require_text_kernel(const QwenConfig& llm, const Runtime& runtime, Log& log) {
  const auto reason = missing_text_kernel(llm, runtime);
  if (!reason) return;
  if (runtime.kernels == KernelPolicy::strict)
    throw InputError(Setting::of("kernels", "strict"),
                     "there is no kernel to write this model's texts: {}", *reason);
  log.warning_once("text is written without a CUDA graph, which is slow: " + *reason);
}

}  // namespace diptych
