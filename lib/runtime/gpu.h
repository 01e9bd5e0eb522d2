// What lib/runtime asks of the GPU; gpu_cuda.cpp answers in a CUDA build, gpu_none.cpp otherwise.
#pragma once

#include <cstdint>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "lib/runtime/runtime.h"
#include "lib/runtime/stopwatch.h"

namespace diptych::gpu {

std::vector<GpuInfo> list();                                       // touches no device
std::optional<std::uint64_t> free_bytes(c10::DeviceIndex device);  // makes a context there
std::optional<std::string> why_none();
void synchronize(at::Device device);
std::uint64_t peak_bytes(at::Device device);
std::uint64_t peak_tensor_bytes(at::Device device);
void reset_peak(at::Device device);
void limit_memory(at::Device device, std::uint64_t bytes);
// Page-locked host memory, uint8 [bytes]: the device reads it without a detour, while it computes.
// Throws RunError where the system does not give it.
Tensor pinned_bytes(std::int64_t bytes);
// Page-locks memory that is there already. Whether that is so now: where the system does not do it,
// it stays as it is.
bool pin(void* memory, std::int64_t bytes) noexcept;
void unpin(void* memory) noexcept;
// Makes the device's context on a thread of its own, then loads the libraries of products and
// convolutions by a small one of each. `free`: gets the free bytes between the two. `log`: gets a
// mark at both ends.
std::jthread open_device(at::Device device, std::promise<std::optional<std::uint64_t>> free,
                         Log& log);
std::unique_ptr<Stopwatch> make_stopwatch(at::Device device);
// Before the first use of a GPU. Exact float32 and repeatable kernels: no TF32, deterministic
// cuDNN.
void initialise();

}  // namespace diptych::gpu
