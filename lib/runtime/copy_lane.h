// Copies from the host to a device beside what the device computes: a stream of their own, and
// events that hand each place of the device's memory back and forth between the two.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include <c10/core/Event.h>
#include <c10/core/Stream.h>

#include "lib/tensor/types.h"

namespace diptych {

// On the CPU copies are made at once, which is only of use to tests. Calls come from one thread.
class CopyLane {
 public:
  // Places 0 .. places - 1 start out free for whatever the current stream does not yet do with
  // them.
  CopyLane(at::Device device, std::size_t places);
  ~CopyLane();  // waits for the copies under way
  CopyLane(const CopyLane&) = delete;
  CopyLane& operator=(const CopyLane&) = delete;

  // One-dimensional host memory to copy from: page-locked for a GPU. Throws RunError where the
  // system does not give it.
  static Tensor host_buffer(std::int64_t elements, at::ScalarType dtype, at::Device device);

  // Copies `from` (a host_buffer) to `to` once the last use of the place is done. Returns at once.
  void fill(std::size_t place, const Tensor& to, const Tensor& from);
  // What the current stream is given after this runs when the place is filled.
  void await_filled(std::size_t place);
  // What the current stream was given before this was the place's last use.
  void release(std::size_t place);

 private:
  c10::Stream current_stream() const;

  at::Device device_;
  std::optional<c10::Stream> stream_;  // nullopt on the CPU
  std::vector<c10::Event> filled_, used_;
};

}  // namespace diptych
