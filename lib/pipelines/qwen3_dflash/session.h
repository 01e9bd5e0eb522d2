// A loaded Qwen3, and what it does with requests.
#pragma once

#include <exception>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "lib/pipelines/qwen3_dflash/checkpoint.h"
#include "lib/pipelines/qwen3_dflash/job.h"
#include "lib/pipelines/qwen3_dflash/memory.h"
#include "lib/session/background_hash.h"
#include "lib/session/memory/budget.h"
#include "lib/session/memory/fit.h"
#include "lib/session/session.h"
#include "lib/session/stage_clock.h"
#include "lib/text/text_stream.h"

namespace diptych {

class Qwen3Session final : public Session {
 public:
  // Opens the checkpoint; reads no weights. Throws InputError.
  Qwen3Session(const RunConfig& config, Log& log);

  std::unique_ptr<Job> make_job(const RunConfig& request) override;
  void load(std::span<const JobGroup> expected, Progress& progress) override;
  std::string weights_hash() override;
  // Texts of the same settings, whose prompts and seeds may differ. One that is traced is alone.
  bool may_share(const RunConfig& a, const RunConfig& b) const override;
  void run(const JobGroup& jobs, Progress& progress, const Results& results) override;
  Report report() const override;

  // The tokens that run() makes texts of, one list for each job.
  std::vector<SpeculativeText> write(const Qwen3Jobs& jobs, const SpeculativeObserver& observer,
                                     Progress& progress);
  const Qwen3Checkpoint& checkpoint() const { return *checkpoint_; }

 private:
  void require_attention() const;
  void read_weights(std::span<const Qwen3Jobs> runs, Progress& progress);
  void log_quantization();
  MemoryPlan plan(const Qwen3Jobs& jobs) const;
  void log_why_uncaptured(const Qwen3Job& job);
  void give(const Qwen3Jobs& jobs, const std::vector<SpeculativeText>& texts,
            std::vector<TextStream>& streams, const Results& results);
  void warn_of_limit(const Qwen3Jobs& jobs, std::span<const SpeculativeText> texts);
  void count(const std::vector<SpeculativeText>& texts, const std::vector<Text>& given);

  RunConfig config_;
  Log& log_;
  Runtime runtime_;
  Report report_;
  StageClock clock_;
  std::unique_ptr<Qwen3Checkpoint> checkpoint_;
  std::optional<SpeculativeWriter> writer_;  // once the weights are there
  MemoryBudget budget_;
  std::exception_ptr why_not_loaded_;  // where load() found room for none of the runs
  std::unique_ptr<BackgroundHash> weights_hash_;
};

}  // namespace diptych
