// What a session of BAGEL may take of the GPU's memory, and the plan by which its requests fit.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "lib/pipelines/bagel/job.h"
#include "lib/pipelines/bagel/memory.h"
#include "lib/session/memory/budget.h"
#include "lib/session/memory/fit.h"

namespace diptych {

// What of the model only some requests need.
struct BagelParts {
  bool vision = false, head = false;  // to look at pictures; to write text
  void add(const BagelJob& job);
  static BagelParts of(BagelJobs jobs);
};

class BagelMemoryPlanner {
 public:
  // With what is free now, or --max-vram. `config` is the session's, of a checkpoint that is open
  // but not loaded. All must outlive it. Throws InputError for a --max-vram that there is not.
  BagelMemoryPlanner(const RunConfig& config, const BagelCheckpoint& checkpoint,
                     const Runtime& runtime);

  // Before loading: chooses where the weights lie, so that these requests fit, and those planned
  // before (`others`). Throws as fit_memory.
  void plan_loading(BagelJobs jobs, BagelParts parts, bool others);
  // Afterwards: what was loaded stays where it is; requests that need more than that leaves are
  // refused. `kept_rows`: TextWriter::capacity().
  void plan_run(BagelJobs jobs, std::int64_t kept_rows);

  const MemoryBudget& budget() const { return budget_; }
  const MemoryPlan& plan() const { return plan_; }  // of the last requests
  // How many bytes may stay taken beside these requests where the memory of their denoise step, and
  // its caches, stay taken between their pictures and before the next requests; below 0 where these
  // may not. Without end on the CPU.
  std::int64_t room_beside_kept_step() const;
  // Cache rows of the text that a job writes: the context as it is read for that, which stays until
  // the picture's contexts are there, and the writer's own. `kept`: TextWriter::capacity().
  static std::int64_t text_rows(const BagelJob& job, std::int64_t kept);

 private:
  BagelWork work_of(BagelJobs jobs, std::int64_t kept_rows) const;
  bool captures_two_kinds(const BagelJob& job) const;
  void add_contexts(BagelWork& work, BagelJobs jobs) const;
  std::int64_t cache_bytes(const BagelWork& work, const BagelJob& job) const;
  BagelSizes sizes(BagelParts parts) const;
  MemoryWishes wishes(const RunConfig& config) const;

  const RunConfig& config_;
  const BagelCheckpoint& checkpoint_;
  const Runtime& runtime_;
  MemoryBudget budget_;
  std::optional<MappedWeights> mapped_;  // on the CPU
  MemoryPlan plan_;
};

}  // namespace diptych
