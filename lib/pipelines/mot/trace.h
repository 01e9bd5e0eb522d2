// The trace of a run on a MoT backbone. Every family has its own names for what it records; what is
// recorded, and in which order of rows, is the same.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lib/pipelines/mot/contexts.h"
#include "lib/pipelines/mot/text_decoder.h"
#include "lib/sampling/branches.h"
#include "lib/sampling/schedule.h"
#include "lib/tensor/trace.h"

namespace diptych {

// The keys and values that the rows of a call attend to, one row of a cache.
struct SeenKeys {
  const KvCache& cache;
  std::int64_t row = 0, length = 0;
};

// What the steps start from.
struct TracedStart {
  const PrefilledContexts& contexts;
  const MotModel& model;
  std::span<const LatentSize> sizes;  // of every sample
  const FlowSchedule& schedule;
  const Tensor& latent;  // float32 [rows of all samples, row width], the start noise in it
};

// The velocities of one step.
struct TracedVelocities {
  std::int64_t step = 0;
  float t = 0;
  const Guidance& guidance;
  const PrefilledContexts& contexts;
  const std::vector<Tensor>& v;  // of the first distinct contexts, those that were computed
  const Tensor& guided;
};

// Of one text: its tokens' logits, and the rows of their forwards.
class MotTextTrace {
 public:
  virtual ~MotTextTrace() = default;
  virtual void see(std::int64_t index, const Tensor& logits) = 0;  // behind fed token `index`
  // What watches the forward of that token; empty: nothing does, and graphs may be used.
  virtual std::function<MotObserver(std::int64_t index)> observers() { return {}; }
  virtual void finish(const std::vector<std::int64_t>& fed, bool by_limit) = 0;
};

class MotTrace {
 public:
  explicit MotTrace(TraceSink& sink) : sink_(sink) {}
  virtual ~MotTrace() = default;
  MotTrace(const MotTrace&) = delete;
  MotTrace& operator=(const MotTrace&) = delete;
  TraceSink& sink() const { return sink_; }

  // Of the prefill call that reads a segment of the branch: "prefill.00.cond.text".
  virtual std::string call_name(const BranchContexts& branch, std::size_t segment) const = 0;
  // The name of what a MotObserver is shown, or of "embeds"; "" = not recorded.
  virtual std::string row_name(std::string_view what) const = 0;
  // Whether keys and values are recorded beside what attends to them.
  virtual bool shows_keys() const { return false; }
  // Everything that is known of the contexts once they are read.
  virtual void contexts(const PrefilledContexts& contexts) = 0;
  virtual void start(const TracedStart& start) = 0;
  // What all branches of a step have in common. time [hidden], projected [rows, hidden]: the latent
  // behind vae2llm.
  virtual void step_inputs(std::int64_t step, const Tensor& time, const Tensor& projected) = 0;
  // Rope positions of the rows of a branch's step.
  virtual void step_positions(std::int64_t step, const BranchContexts& branch,
                              std::span<const LatentSize> sizes) = 0;
  virtual void velocities(const TracedVelocities& velocities) = 0;
  // `cache`: the context, in row 0; `position`: of the first token that is fed.
  virtual std::unique_ptr<MotTextTrace> text(const KvCache& cache, std::int64_t position) = 0;

  // Records rows in the order of their tokens as <prefix>.<row_name(what)>, and with them the keys
  // that they attend to.
  void rows(const std::string& prefix, std::string_view what, const Tensor& rows,
            const SeenKeys& keys) const;
  bool wants_rows(const std::string& prefix, std::string_view what) const;

 private:
  TraceSink& sink_;
};

// "stepNNN.<branch>.*" for the distinct contexts [first, first + count); rows in the official order
// [start marker, latents, end marker]. A branch that shares another's context is recorded under
// both names. What it refers to must outlive it.
MotObserver trace_step_observer(const PrefilledContexts& contexts,
                                std::span<const LatentSize> sizes, std::int64_t step,
                                std::int64_t first, std::int64_t count, MotTrace& trace);

// kv.<name>.layerLL.key and .value: rows from `from` on of what the branch has read, of all
// samples.
void trace_cache(const PrefilledContexts& contexts, const BranchContexts& branch,
                 const std::string& name, std::int64_t from, TraceSink& sink);

}  // namespace diptych
