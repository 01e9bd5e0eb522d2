#include "lib/runtime/runtime.h"

#include <fstream>

#include "lib/base/error.h"
#include "lib/runtime/gpu.h"

namespace diptych {

at::Device resolve_device(const DeviceChoice& choice, Log& log) {
  if (choice.kind == DeviceChoice::Kind::cpu) return at::kCPU;
  const bool automatic = choice.kind == DeviceChoice::Kind::automatic;
  const Setting setting = Setting::of("device", device_name(choice));
  const int index = choice.index;
  const std::vector<GpuInfo> gpus = gpu::list();
  if (gpus.empty()) {
    const std::string reason = gpu::why_none().value_or("no GPU found");
    if (!automatic) throw InputError(setting, "no usable GPU: {}", reason);
    log.debug("using the CPU: {}", reason);
    return at::kCPU;
  }
  if (static_cast<std::size_t>(index) >= gpus.size()) {
    throw InputError(setting, "found {} GPU(s), expected an index below that", gpus.size());
  }
  const GpuInfo& chosen = gpus[static_cast<std::size_t>(index)];
  if (chosen.major < 8) {
    const auto reason = fmt::format("{} has compute capability {}.{}, expected 8.0 or newer",
                                    chosen.name, chosen.major, chosen.minor);
    if (!automatic) throw InputError(setting, "{}", reason);
    log.info("using the CPU: {}", reason);
    return at::kCPU;
  }
  gpu::initialise();
  return {at::kCUDA, static_cast<at::DeviceIndex>(index)};
}

bool multiplies_fp8(at::Device device) {
  const GpuInfo gpu = gpu::list().at(static_cast<std::size_t>(device.index()));
  return gpu.major * 10 + gpu.minor >= 89;
}

void require_quantizable(Quantization quantization, at::Device device, at::ScalarType dtype,
                         KernelPolicy kernels) {
  const bool by_kernels = device.is_cuda() && kernels != KernelPolicy::reference;
  if (quantization != Quantization::fp8 || !by_kernels) return;
  const Setting setting = Setting::of("quantization", "fp8");
  const GpuInfo gpu = gpu::list().at(static_cast<std::size_t>(device.index()));
  if (!multiplies_fp8(device)) {
    throw InputError(setting,
                     "{} has compute capability {}.{}, expected 8.9 or newer (int8 runs there)",
                     gpu.name, gpu.major, gpu.minor);
  }
  if (dtype == at::kFloat) {
    throw InputError(setting,
                     "its products on a GPU are bfloat16, found --dtype float32; expected "
                     "bfloat16 (int8 runs in float32, too)");
  }
}

std::vector<GpuInfo> list_gpus() {
  return gpu::list();
}
std::optional<std::uint64_t> free_gpu_memory(std::size_t index) {
  return gpu::free_bytes(static_cast<c10::DeviceIndex>(index));
}

DeviceOpening::DeviceOpening(at::Device device, Log& log) {
  std::promise<std::optional<std::uint64_t>> free;
  free_ = free.get_future().share();
  thread_ = gpu::open_device(device, std::move(free), log);
}

std::optional<std::string> why_no_gpu() {
  return gpu::why_none();
}

void synchronize(at::Device device) {
  if (device.is_cuda()) gpu::synchronize(device);
}

std::uint64_t peak_memory_bytes(at::Device device) {
  return device.is_cuda() ? gpu::peak_bytes(device) : 0;
}

std::uint64_t peak_tensor_bytes(at::Device device) {
  return device.is_cuda() ? gpu::peak_tensor_bytes(device) : 0;
}

void reset_peak_memory(at::Device device) {
  if (device.is_cuda()) gpu::reset_peak(device);
}

void limit_memory(at::Device device, std::uint64_t bytes) {
  if (device.is_cuda()) gpu::limit_memory(device, bytes);
}

TunedDevice tuned_device(at::Device device) {
  const GpuInfo info = gpu::list().at(static_cast<std::size_t>(device.index()));
  return {info.name, info.major, info.minor};
}

std::string device_description(at::Device device) {
  if (device.is_cuda()) {
    const GpuInfo info = gpu::list().at(static_cast<std::size_t>(device.index()));
    return fmt::format("{}, {}.{}", info.name, info.major, info.minor);
  }
  std::ifstream cpuinfo("/proc/cpuinfo");
  for (std::string line; std::getline(cpuinfo, line);) {
    if (!line.starts_with("model name")) continue;
    if (const auto colon = line.find(": "); colon != std::string::npos)
      return line.substr(colon + 2);
  }
  return "CPU";
}

}  // namespace diptych
