// One run of jobs of Wan.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lib/pipelines/dit/block_cache.h"
#include "lib/pipelines/wan/job.h"
#include "lib/sampling/video_guidance.h"

namespace diptych {

class WanTurn final : public DitTurn {
 public:
  explicit WanTurn(DitJobs jobs);

  void read(std::uint64_t seed, TraceSink* trace) override;
  Tensor start(std::span<const std::uint64_t> seeds, TraceSink* trace) override;
  void use_mode(bool batched) override { batched_ = batched; }
  void time_step(const Tensor& x) override;
  Tensor step(const Tensor& x, std::int64_t i, TraceSink* trace) override;
  Tensor finish(const Tensor& x) override;
  Media decode(const Tensor& latent, Log& log, TraceSink* trace) override;
  std::int64_t forwards() const override { return forwards_; }
  std::string step_note() const override;
  void use_cache(bool on) override { caches_ = on; }
  void record_steps(StepChangeRecorder& recorder) override { cache_.record(recorder); }

 private:
  // What an expert made of the texts and the picture. The branches are the negative texts of all
  // jobs, then their prompts; without guidance the prompts alone.
  struct Reading {
    WanContext context;
    WanPlan together;              // all branches in a forward
    std::array<WanPlan, 2> alone;  // each by itself
    std::array<WanContext, 2> one;
  };
  struct Call {  // a forward of some branches
    std::int64_t first = 0;
    const WanPlan* plan = nullptr;
    const WanContext* context = nullptr;
    std::string_view name;  // in a trace: "cond", "uncond", "batch"
  };
  struct Velocities {     // [jobs, C, F, h, w] each
    Tensor cond, uncond;  // uncond undefined: not computed
  };

  std::int64_t count() const { return std::ssize(jobs_); }
  std::int64_t branches() const { return job_.branches; }
  const Reading& reading(std::size_t expert, TraceSink* trace);
  void record_context(TraceSink& trace, std::string_view name, const Tensor& value) const;
  void read_picture(TraceSink* trace);
  Tensor look(TraceSink* trace) const;
  Tensor model_input(const Tensor& x) const;
  Tensor timesteps(std::int64_t step, std::int64_t samples) const;
  Velocities velocities(const Tensor& x, std::int64_t step, bool both, TraceSink* trace);
  Tensor forward(const Call& call, const Tensor& input, std::int64_t step, TraceSink* trace);
  Tensor guide(const Velocities& v, std::int64_t step, TraceSink* trace);
  void plan_cache(const WanTransformer& model, const WanPlan& plan);
  Tensor run_blocks(const WanTransformer& model, const Call& call, const WanTime& time, Tensor x,
                    std::int64_t step, const WanObserver& observer);
  bool is_shown(std::int64_t step) const;
  WanObserver observer_of(const Call& call, std::int64_t step, TraceSink* trace);

  std::vector<const WanJob*> jobs_;
  const WanJob& job_;  // the first one, which has what they have in common
  const Runtime& runtime_;
  FlowSolver solver_;
  std::array<std::optional<Reading>, WanCheckpoint::kExperts> readings_;
  bool batched_ = false;
  std::int64_t forwards_ = 0;
  Tensor clip_rows_;  // of the vision tower
  // float32 [1, C, F, h, w]: mask and latents beside the latent, or the first frame
  Tensor condition_;
  GuidanceGate gate_;
  std::map<std::string, Tensor> cond_seen_;  // of a trace: what the other branch is joined with
  // With TeaCache by the timestep alone: the steps, empty where they are not planned yet.
  std::vector<bool> computes_;
  StepResiduals residuals_;  // of each branch: what the blocks added when they last ran
  BlockCache cache_;         // others
  bool caches_ = true;
};

}  // namespace diptych
