#include "lib/runtime/copy_lane.h"

#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include "lib/runtime/gpu.h"

namespace diptych {

using DeviceFunctions = c10::impl::VirtualGuardImpl;

CopyLane::CopyLane(at::Device device, std::size_t places) : device_(device) {
  if (device.is_cpu()) return;
  stream_ = DeviceFunctions(device.type()).getStreamFromGlobalPool(device, /*isHighPriority=*/true);
  for (std::size_t i = 0; i < places; ++i) {
    filled_.emplace_back(device.type());
    // The memory may have had another use on the current stream, which must end first.
    used_.emplace_back(device.type()).record(current_stream());
  }
}

CopyLane::~CopyLane() {
  if (!stream_) return;
  try {
    DeviceFunctions(device_.type()).synchronizeStream(*stream_);
  } catch (const c10::Error&) {  // a lost device copies nothing any more
  }
}

Tensor CopyLane::host_buffer(std::int64_t elements, at::ScalarType dtype, at::Device device) {
  if (device.is_cpu()) return at::empty({elements}, dtype);
  const auto size = static_cast<std::int64_t>(c10::elementSize(dtype));
  return gpu::pinned_bytes(elements * size).view(dtype);
}

c10::Stream CopyLane::current_stream() const {
  return DeviceFunctions(device_.type()).getStream(device_);
}

void CopyLane::fill(std::size_t place, const Tensor& to, const Tensor& from) {
  if (!stream_) {
    to.copy_(from);
    return;
  }
  const c10::StreamGuard guard(*stream_);
  used_[place].block(*stream_);
  to.copy_(from, /*non_blocking=*/true);
  filled_[place].record(*stream_);
}

void CopyLane::await_filled(std::size_t place) {
  if (stream_) filled_[place].block(current_stream());
}

void CopyLane::release(std::size_t place) {
  if (stream_) used_[place].record(current_stream());
}

}  // namespace diptych
