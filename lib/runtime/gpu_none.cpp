#include "lib/base/error.h"
#include "lib/runtime/gpu.h"

namespace diptych::gpu {

std::vector<GpuInfo> list() {
  return {};
}
std::optional<std::uint64_t> free_bytes(c10::DeviceIndex) {
  return std::nullopt;
}
std::optional<std::string> why_none() {
  return "this build has no CUDA (no nvcc or no CUDA libtorch when it was configured)";
}
void synchronize(at::Device) {}
std::uint64_t peak_bytes(at::Device) {
  return 0;
}
std::uint64_t peak_tensor_bytes(at::Device) {
  return 0;
}
void reset_peak(at::Device) {}
void limit_memory(at::Device, std::uint64_t) {}
Tensor pinned_bytes(std::int64_t /*bytes*/) {
  throw RunError("page-locked host memory: {}", *why_none());
}
bool pin(void* /*memory*/, std::int64_t /*bytes*/) noexcept {
  return false;
}
void unpin(void* /*memory*/) noexcept {}
std::jthread open_device(at::Device, std::promise<std::optional<std::uint64_t>> free, Log&) {
  free.set_value(std::nullopt);
  return {};
}
std::unique_ptr<Stopwatch> make_stopwatch(at::Device device) {
  throw InputError("nothing can be timed on {}: {}", device.str(), *why_none());
}
void initialise() {}

}  // namespace diptych::gpu
