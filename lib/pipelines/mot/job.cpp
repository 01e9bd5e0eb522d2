#include "lib/pipelines/mot/job.h"

#include <span>
#include <utility>

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

std::vector<MotJob*> mot_jobs(const JobGroup& jobs) {
  std::vector<MotJob*> own;
  for (Job* job : jobs) own.push_back(&dynamic_cast<MotJob&>(*job));
  return own;
}

std::vector<BranchContexts> pack_samples(std::vector<std::vector<BranchContexts>> samples) {
  std::vector<BranchContexts> packed = std::move(samples.front());
  for (const auto& sample : std::span(samples).subspan(1)) {
    for (std::size_t b = 0; b < packed.size(); ++b)
      packed[b].samples.push_back(sample.at(b).samples.front());
  }
  return packed;
}

std::vector<BranchContexts> packed_branches(MotJobs jobs) {
  std::vector<std::vector<BranchContexts>> samples;
  for (const MotJob* job : jobs) samples.push_back(job->branches);
  return pack_samples(std::move(samples));
}

std::vector<BranchContexts> packed_branches(const MotTurns& turns) {
  std::vector<std::vector<BranchContexts>> samples;
  for (const auto& turn : turns) samples.push_back(turn->branches);
  return pack_samples(std::move(samples));
}

PaintRequest packed_request(MotJobs jobs) {
  PaintRequest request = jobs.front()->paint;
  request.sizes.clear();
  request.clean_rows.clear();
  for (const MotJob* job : jobs) {
    request.sizes.push_back(job->size());
    const std::vector<std::int64_t>& clean = job->paint.clean_rows;
    request.clean_rows.insert(request.clean_rows.end(), clean.begin(), clean.end());
  }
  return request;
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
