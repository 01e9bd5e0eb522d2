#include <algorithm>

#include <ATen/cuda/CUDAContext.h>
#include <c10/core/InferenceMode.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>

#include "lib/base/error.h"
#include "lib/runtime/gpu.h"

namespace diptych::gpu {

std::vector<GpuInfo> list() {
  std::vector<GpuInfo> gpus;
  const c10::DeviceIndex count =
      c10::cuda::device_count();  // 0, not an exception, without a driver
  for (c10::DeviceIndex i = 0; i < count; ++i) {
    const cudaDeviceProp* properties = at::cuda::getDeviceProperties(i);
    GpuInfo info;
    info.name = properties->name;
    info.major = properties->major;
    info.minor = properties->minor;
    info.multiprocessors = properties->multiProcessorCount;
    info.total_bytes = properties->totalGlobalMem;
    gpus.push_back(std::move(info));
  }
  return gpus;
}

std::optional<std::uint64_t> free_bytes(c10::DeviceIndex device) {
  const c10::cuda::CUDAGuard guard(device);
  std::size_t free = 0, total = 0;
  if (cudaMemGetInfo(&free, &total) != cudaSuccess) return std::nullopt;
  return free;
}

std::optional<std::string> why_none() {
  if (c10::cuda::device_count() > 0) return std::nullopt;
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  if (error == cudaErrorInsufficientDriver) {
    return "no NVIDIA driver, or one older than this build's CUDA needs";
  }
  return std::string(error == cudaSuccess ? "the driver shows no GPU" : cudaGetErrorString(error));
}

void synchronize(at::Device device) {
  const c10::cuda::CUDAGuard guard(device);
  c10::cuda::device_synchronize();
}

std::uint64_t peak_bytes(at::Device device) {
  const auto stats = c10::cuda::CUDACachingAllocator::getDeviceStats(device.index());
  // Reserved, not allocated: what the run really takes from the card.
  return static_cast<std::uint64_t>(stats.reserved_bytes[0].peak);
}

std::uint64_t peak_tensor_bytes(at::Device device) {
  const auto stats = c10::cuda::CUDACachingAllocator::getDeviceStats(device.index());
  return static_cast<std::uint64_t>(stats.allocated_bytes[0].peak);
}

void reset_peak(at::Device device) {
  c10::cuda::CUDACachingAllocator::resetPeakStats(device.index());
}

void limit_memory(at::Device device, std::uint64_t bytes) {
  at::globalContext().lazyInitDevice(c10::DeviceType::CUDA);  // before, there is no allocator
  const auto all = at::cuda::getDeviceProperties(device.index())->totalGlobalMem;
  const double fraction = static_cast<double>(bytes) / static_cast<double>(all);
  c10::cuda::CUDACachingAllocator::setMemoryFraction(std::min(fraction, 1.0), device.index());
}

// Not torch's pinned memory: that is rounded up to a power of two, a seventh more for an expert of
// the 7B model (ATen/core/CachingHostAllocator.h).
Tensor pinned_bytes(std::int64_t bytes) {
  void* memory = nullptr;
  const cudaError_t error =
      cudaHostAlloc(&memory, static_cast<std::size_t>(bytes), cudaHostAllocDefault);
  if (error != cudaSuccess) {
    cudaGetLastError();  // it is not the next call's
    throw RunError("{:.2f} GiB of host memory cannot be page-locked: {}",
                   static_cast<double>(bytes) / (std::int64_t{1} << 30), cudaGetErrorString(error));
  }
  return at::from_blob(
      memory, {bytes}, [](void* pointer) { cudaFreeHost(pointer); }, at::kByte);
}

bool pin(void* memory, std::int64_t bytes) noexcept {
  const auto error =
      cudaHostRegister(memory, static_cast<std::size_t>(bytes), cudaHostRegisterPortable);
  if (error != cudaSuccess) cudaGetLastError();  // it is not the next call's
  return error == cudaSuccess;
}

void unpin(void* memory) noexcept {
  if (cudaHostUnregister(memory) != cudaSuccess) cudaGetLastError();
}

std::jthread open_device(at::Device device, std::promise<std::optional<std::uint64_t>> free,
                         Log& log) {
  return std::jthread([device, free = std::move(free), &log]() mutable {
    // What fails here fails again, and is told, where the device is used.
    free.set_value(free_bytes(device.index()));
    log.mark("the device has its context");
    try {
      const c10::InferenceMode inference;
      const c10::cuda::CUDAGuard guard(device.index());
      const auto options = at::TensorOptions(device).dtype(at::kBFloat16);
      const Tensor square = at::ones({64, 64}, options);
      at::mm(square, square);
      const Tensor image = at::ones({1, 32, 32, 32}, options.dtype(at::kFloat));
      at::conv2d(image, at::ones({32, 32, 3, 3}, image.options()));
      log.mark("the device has its libraries");
    } catch (const std::exception&) {
    }
  });
}

void initialise() {
  at::globalContext().lazyInitDevice(c10::DeviceType::CUDA);
  at::globalContext().setAllowTF32CuDNN(false);
  at::globalContext().setAllowTF32CuBLAS(false);
  at::globalContext().setDeterministicCuDNN(true);
  at::globalContext().setBenchmarkCuDNN(false);
}

}  // namespace diptych::gpu
