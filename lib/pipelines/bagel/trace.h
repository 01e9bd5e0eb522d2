// The trace names of BAGEL, as its golden data has them.
#pragma once

#include <cstdint>
#include <string>

#include "lib/pipelines/mot/trace.h"

namespace diptych {

class BagelTrace final : public MotTrace {
 public:
  using MotTrace::MotTrace;
  // "prefill.NN.<branch>.text", ".vae" or ".vit".
  std::string call_name(const BranchContexts& branch, std::size_t segment) const override;
  std::string row_name(std::string_view what) const override;
  // prefill.NN.<branch>.text.* (ids and lengths) and kv.<branch>.*
  void contexts(const PrefilledContexts& contexts) override;
  // gen.*: the start noise and the index tensors of the official code.
  void start(const TracedStart& start) override;
  void step_inputs(std::int64_t step, const Tensor& time, const Tensor& projected) override;
  void step_positions(std::int64_t step, const BranchContexts& branch,
                      std::span<const LatentSize> sizes) override;
  void velocities(const TracedVelocities& velocities) override;
  std::unique_ptr<MotTextTrace> text(const KvCache& cache, std::int64_t position) override;
};

// <name>.packed_* of a picture that is read: its markers and `rows` latent or patch rows.
void trace_image_block(TraceSink& trace, const std::string& name, const MotSample& block,
                       ImageMarkers markers, std::int64_t rows);

}  // namespace diptych
