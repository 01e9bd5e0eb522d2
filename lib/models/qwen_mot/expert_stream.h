// Experts whose projections lie on the host, and the places on the device that they pass through.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "lib/models/qwen_mot/layers.h"
#include "lib/runtime/block_stream.h"

namespace diptych {

struct HostExpert {
  std::size_t layer = 0;
  bool gen = false;
  Tensor matrices;  // a CopyLane::host_buffer of QwenLayer::matrix_bytes()
};

class ExpertStream {
 public:
  // `experts` in the order of use: by layer.
  ExpertStream(const QwenConfig& config, const MatrixFormat& format,
               std::vector<HostExpert> experts, std::int64_t slots, at::Device device);
  bool has(MotParts parts) const;
  // `kept`: the layer as it lies on the device. Starts to copy the experts that the following
  // layers need (the first layers follow the last one), as many as there are slots.
  const MotLayer& acquire(std::size_t layer, const MotLayer& kept, MotParts parts);
  void release() { stream_.release(); }

 private:
  static bool needed(const HostExpert& expert, MotParts parts);
  std::vector<std::size_t> upcoming(std::size_t layer, MotParts parts) const;

  std::vector<HostExpert> experts_;
  BlockStream stream_;
  std::vector<QwenLayer> views_;  // the projections in each place
  MotLayer acquired_;
};

}  // namespace diptych
