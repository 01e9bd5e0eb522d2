// One run of jobs of Cosmos-Predict2.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <ATen/core/Generator.h>

#include "lib/pipelines/cosmos/job.h"
#include "lib/pipelines/dit/block_cache.h"
#include "lib/sampling/flow_solver.h"
#include "lib/sampling/preconditioning.h"

namespace diptych {

class CosmosTurn final : public DitTurn {
 public:
  explicit CosmosTurn(DitJobs jobs);

  void read(std::uint64_t seed, TraceSink* trace) override;
  bool reading_draws() const override { return job_.continues(); }
  Tensor start(std::span<const std::uint64_t> seeds, TraceSink* trace) override;
  void use_mode(bool batched) override { batched_ = batched; }
  void time_step(const Tensor& x) override;
  Tensor step(const Tensor& x, std::int64_t i, TraceSink* trace) override;
  Media decode(const Tensor& latent, Log& log, TraceSink* trace) override;
  std::int64_t forwards() const override { return forwards_; }
  std::string step_note() const override { return caches_ ? cache_.note() : std::string(); }
  void use_cache(bool on) override { caches_ = on; }
  void record_steps(StepChangeRecorder& recorder) override { cache_.record(recorder); }

 private:
  // What the transformer made of the texts. The branches are the negative texts of all jobs, then
  // their prompts; without guidance the prompts alone.
  struct Reading {
    CosmosContext context;
    CosmosPlan together;              // all branches in a forward
    std::array<CosmosPlan, 2> alone;  // each by itself
    std::array<CosmosContext, 2> one;
  };
  struct Call {  // a forward of some branches
    std::int64_t first = 0;
    const CosmosPlan* plan = nullptr;
    const CosmosContext* context = nullptr;
    std::string_view name;  // in a trace: "cond", "uncond", "batch"
  };
  struct Branches {       // [jobs, C, F, h, w] each
    Tensor cond, uncond;  // uncond undefined: not computed
  };

  std::int64_t count() const { return std::ssize(jobs_); }
  void record_texts(TraceSink& trace) const;
  void read_texts();
  void encode_frames(TraceSink* trace);
  void read_frames(std::uint64_t seed, TraceSink* trace);
  Tensor times(std::int64_t step) const;
  Tensor model_input(const Tensor& x, std::int64_t step) const;
  Tensor with_known(const Tensor& x) const;
  bool is_shown(std::int64_t step) const;
  CosmosObserver observer_of(const Call& call, std::int64_t step, TraceSink* trace);
  Tensor forward(const Call& call, const Tensor& input, std::int64_t step, TraceSink* trace);
  Branches outputs(const Tensor& input, std::int64_t step, TraceSink* trace);
  Tensor guided_x0(const Tensor& x, const Branches& out, std::int64_t step, TraceSink* trace) const;
  float sigma(std::int64_t step) const { return solver_.sigmas()[static_cast<std::size_t>(step)]; }

  std::vector<const CosmosJob*> jobs_;
  const CosmosJob& job_;  // the first one, which has what they have in common
  const Runtime& runtime_;
  FlowSolver solver_;
  std::optional<Reading> reading_;
  std::int64_t known_ = 0;                // latent frames that are given, the first ones
  std::optional<WanVaeMoments> moments_;  // of the given frames
  Tensor known_latents_;                  // sampled of them: float32 [1, C, F, h, w], normalised
  at::Generator generator_;               // of a seed, behind what read() drew
  bool batched_ = false;
  std::int64_t forwards_ = 0;
  BlockCache cache_;
  bool caches_ = true;
  std::map<std::string, Tensor> cond_seen_;  // of a trace: what the other branch is joined with
};

}  // namespace diptych
