// What a session of a model on a MoT backbone may take of the GPU's memory, and the plan by which
// its requests fit.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "lib/pipelines/drafting/drafter.h"
#include "lib/pipelines/mot/checkpoint.h"
#include "lib/pipelines/mot/job.h"
#include "lib/pipelines/mot/memory.h"
#include "lib/runtime/handoff.h"
#include "lib/session/memory/budget.h"
#include "lib/session/memory/fit.h"

namespace diptych {

MotLoadedParts operator|(MotLoadedParts a, MotLoadedParts b);

class MotMemoryPlanner {
 public:
  // With what is free now, or --max-vram. `config` is the session's, of a checkpoint that is open
  // but not loaded; `drafter`: of its texts, once one is opened. All must outlive it. Throws
  // InputError for a --max-vram that there is not.
  MotMemoryPlanner(const RunConfig& config, const MotCheckpoint& checkpoint,
                   const std::optional<OpenedDrafter>& drafter, const Runtime& runtime);

  // Parts that these jobs need of this session, which may be one stage alone.
  MotLoadedParts needed_parts(MotJobs jobs) const {
    MotLoadedParts parts;
    if (stage_ == StageRole::paints) return parts;
    for (const MotJob* job : jobs)
      parts = parts | MotLoadedParts{.vision = job->looks, .head = job->writes()};
    return parts;
  }
  // Before loading: chooses where the weights lie, so that these requests fit, and those planned
  // before (`others`). Throws as fit_memory.
  void plan_loading(MotJobs jobs, MotLoadedParts parts, bool others);
  // Afterwards: what was loaded stays where it is; requests that need more than that leaves are
  // refused. `kept_rows`: TextWriter::capacity().
  void plan_run(MotJobs jobs, std::int64_t kept_rows);

  const MemoryBudget& budget() const { return budget_; }
  const MemoryPlan& plan() const { return plan_; }  // of the last requests
  std::int64_t pixels_per_row() const { return checkpoint_sizes_.pixels_per_row; }
  // How many bytes may stay taken beside these requests where the memory of their denoise step, and
  // its caches, stay taken between their pictures and before the next requests; below 0 where these
  // may not. Without end on the CPU.
  std::int64_t room_beside_kept_step() const;
  // Cache rows of the text that a job writes: the context as it is read for that, which stays until
  // the picture's contexts are there, and the writer's own. `kept`: TextWriter::capacity().
  static std::int64_t text_rows(const MotJob& job, std::int64_t kept);

 private:
  MotWork work_of(MotJobs jobs, std::int64_t kept_rows) const;
  bool captures_two_kinds(const MotJob& job) const;
  void add_contexts(MotWork& work, MotJobs jobs) const;
  std::int64_t cache_bytes(const MotWork& work, const MotJob& job) const;
  MotSizes sizes(MotLoadedParts parts, MotJobs jobs) const;
  std::optional<DrafterCosts> drafter_costs(MotJobs jobs) const;
  std::int64_t block_of(const MotJob& job) const;
  MemoryWishes wishes(const RunConfig& config) const;

  const RunConfig& config_;
  const MotCheckpoint& checkpoint_;
  const std::optional<OpenedDrafter>& drafter_;
  const Runtime& runtime_;
  std::optional<StageRole> stage_;  // set where another session does the other stage
  MemoryBudget budget_;
  MotSizes checkpoint_sizes_;
  std::optional<MappedWeights> mapped_;  // on the CPU
  MemoryPlan plan_;
};

}  // namespace diptych
