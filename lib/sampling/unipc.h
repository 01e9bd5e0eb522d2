// UniPC, a multistep predictor with a corrector (Zhao et al. 2023, arXiv:2302.04867), for
// velocities of flow matching: x_t = (1 - sigma) x0 + sigma noise. Follows diffusers,
// schedulers/scheduling_unipc_multistep.py, in its order of float32 operations; specs: wan.md 6.1.
//
// All factors are computed ahead, on the host. A step reads nothing back from the device.
#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include "lib/sampling/flow_table.h"
#include "lib/tensor/types.h"

namespace diptych {

// With the names of a checkpoint's scheduler_config.json.
struct UniPcOptions {
  std::int64_t solver_order = 2;  // 1 to 3
  std::string solver_type = "bh2";
  bool lower_order_final = true;
  std::vector<std::int64_t> disable_corrector;  // steps whose result the next step does not correct

  // Throws InputError naming the key: an order outside 1 to 3; any solver type but bh2, as bh1,
  // which ends in NaN where the last level is 0; lower_order_final off with an order above 1, which
  // does as well; a negative step.
  void check() const;
};

// The way from one level to the next: sample * x - output * m0 - change * sum of weights[k] D[k].
struct UniPcUpdate {
  float sample = 0;  // of the sample at the start
  float output = 0;  // of m0, the clip as predicted there
  float change = 0;
  // D[k] = (m[k + 1] - m0) / distances[k], of the predictions before m0; the corrector has one more
  // weight, for the prediction at the end of the way minus m0.
  std::vector<float> distances;
  std::vector<float> weights;
};

struct UniPcStep {
  float sigma = 0;
  bool corrects = false;
  UniPcUpdate corrector;  // from the level before to this one
  UniPcUpdate predictor;  // from this one to the next
  std::int64_t predictor_order = 1;
};

struct UniPcSchedule {
  FlowTable table;
  std::vector<UniPcStep> steps;
};

// Throws as make_flow_table and UniPcOptions::check. sampler: one of UniPC's.
UniPcSchedule make_unipc_schedule(FlowSampler sampler, std::int64_t steps, double shift,
                                  const UniPcOptions& options = {});

// One clip on its way through a schedule.
class UniPcState {
 public:
  explicit UniPcState(UniPcSchedule schedule) : schedule_(std::move(schedule)) {}

  // x: float32, any shape, the latent that the velocity was computed from; v: the same shape, any
  // floating dtype, taken as float32. Returns the latent of the next level, a fresh float32 tensor.
  // Steps come in order, from 0 on. x is kept, not copied: nobody may write to it afterwards.
  Tensor step(std::int64_t i, const Tensor& v, const Tensor& x);
  void reset();  // forgets the clip: step 0 comes next

  const UniPcSchedule& schedule() const { return schedule_; }
  // Of the last step. x0: x - sigma v of the sample before its correction; corrected: that sample.
  const Tensor& x0() const { return outputs_.front(); }
  const Tensor& corrected() const { return corrected_; }

 private:
  Tensor updated(const UniPcUpdate& update, const Tensor& from, const Tensor* at_end) const;

  UniPcSchedule schedule_;
  std::deque<Tensor> outputs_;  // predictions of the clip, the latest first
  Tensor corrected_;            // the sample that the last predictor began from
  std::int64_t next_ = 0;
};

}  // namespace diptych
