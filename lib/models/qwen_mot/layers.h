// The decoder layers' weights. All of them are on the device, or some are on the host and are
// copied ahead of the layer that needs them.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "lib/models/qwen/layer.h"
#include "lib/tensor/weights.h"

namespace diptych {

// The weights for the two kinds of rows: each kind has its expert.
struct MotLayer {
  QwenLayer und, gen;
};

struct MotParts {  // the experts that a call has rows for
  bool und = false, gen = false;
};

// How many experts of each kind stay on the device, spread evenly over the layers. The others lie
// on the host, page-locked, and pass through `slots` places on the device, each of one expert's
// size: at least 2, and one more than a layer needs at once for copies to run beside the work.
struct MotOffload {
  std::int64_t resident_und = 0, resident_gen = 0;
  std::int64_t slots = 4;
};

class ExpertStream;

class MotLayers {
 public:
  // `model`: scope "language_model.model". Throws as Weights::get, and as CopyLane::host_buffer.
  static MotLayers load(const Weights& model, const QwenConfig& config,
                        const std::optional<MotOffload>& offload,
                        const MatrixQuantization& quantization = {});
  std::size_t size() const { return layers_.size(); }
  // Norms and biases are always there, projections only where they stay on the device.
  const MotLayer& operator[](std::size_t layer) const { return layers_[layer]; }
  // Whether a call with such rows waits for experts from the host. Such a call cannot be captured
  // in a CUDA graph.
  bool streams(MotParts parts) const;

  // The layer with all weights of the experts of `parts`, for work that the current stream is given
  // before release(). One layer at a time, from one thread; fastest in the order of the layers.
  const MotLayer& acquire(std::size_t layer, MotParts parts) const;
  void release() const;

 private:
  std::vector<MotLayer> layers_;
  std::shared_ptr<ExpertStream> stream_;  // null where everything stays on the device
};

}  // namespace diptych
