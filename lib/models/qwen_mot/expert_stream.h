// Experts whose projections lie on the host, and the places on the device that they pass through.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "lib/models/qwen_mot/layers.h"
#include "lib/runtime/copy_lane.h"

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
  void release();

 private:
  struct Slot {
    Tensor buffer;
    QwenLayer views;                    // its projections
    std::optional<std::size_t> expert;  // what lies there, or is on its way
    std::uint64_t last_use = 0;
  };
  static bool needed(const HostExpert& expert, MotParts parts);
  std::vector<std::size_t> upcoming(std::size_t layer, MotParts parts) const;
  Slot* find(std::size_t expert);
  std::size_t oldest_without(const std::vector<std::size_t>& wanted) const;

  std::vector<HostExpert> experts_;
  std::vector<Slot> slots_;
  std::vector<std::size_t> in_use_;  // slots
  MotLayer acquired_;
  std::uint64_t uses_ = 0;
  CopyLane lane_;  // the last member: its destructor waits for copies from and to the others
};

}  // namespace diptych
