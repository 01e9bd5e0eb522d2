// Where and how a run computes: device, dtypes, kernel policy, attention per stage and role. Passed
// by const reference, never global.
#pragma once

#include <cstdint>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>

#include "lib/base/choices.h"
#include "lib/base/log.h"
#include "lib/ops/linear_operand.h"
#include "lib/runtime/ranks.h"
#include "lib/runtime/stage_backends.h"
#include "lib/tuning/find.h"

namespace diptych {

// A CUDA device that gets ready on a thread of its own, while files are read. Joins when it goes.
class DeviceOpening {
 public:
  DeviceOpening(at::Device device, Log& log);  // marks of how far it is
  // Bytes of the device before libraries were loaded to it; waits for the context. Nothing where
  // CUDA cannot tell.
  std::optional<std::uint64_t> free_bytes() const { return free_.get(); }

 private:
  std::shared_future<std::optional<std::uint64_t>> free_;
  std::jthread thread_;
};

struct Runtime {
  at::Device device{at::kCPU};
  at::ScalarType dtype = at::kFloat;
  Tuning tuning;  // of the device; kernels and attention point into it
  Kernels kernels;
  Quantization quantization = Quantization::none;
  bool vae_tf32 = false;                         // the autoencoder computes in TF32
  StageBackends read_attention;                  // prefill and text
  StageBackends paint_attention;                 // denoising
  std::shared_ptr<Ranks> ranks;                  // null: this process works alone
  std::shared_ptr<const DeviceOpening> opening;  // null on the CPU
};

// A device that is there. `automatic` takes CUDA when a GPU and a CUDA build are there, else the
// CPU, and logs why once. Throws InputError with the reason when a GPU was asked for and none is
// usable.
at::Device resolve_device(const DeviceChoice& choice, Log& log);
// Throws InputError for what the kernels cannot multiply on the device: fp8 on a GPU below compute
// capability 8.9, and fp8 in float32.
void require_quantizable(Quantization quantization, at::Device device, at::ScalarType dtype,
                         KernelPolicy kernels);

struct GpuInfo {
  std::string name;
  int major = 0, minor = 0, multiprocessors = 0;
  std::uint64_t total_bytes = 0;
};
std::vector<GpuInfo> list_gpus();  // empty without a GPU or in a CPU build
// Makes a CUDA context on that GPU. Nothing where CUDA cannot tell.
std::optional<std::uint64_t> free_gpu_memory(std::size_t index);
// A CUDA device as tuning files name it.
TunedDevice tuned_device(at::Device device);
// Whether the compute capability of a CUDA device is 8.9 or newer.
bool multiplies_fp8(at::Device device);
std::optional<std::string> why_no_gpu();  // the reason where list_gpus() is empty
void synchronize(at::Device device);      // waits for the device; nothing on the CPU
std::uint64_t peak_memory_bytes(
    at::Device device);  // most bytes reserved on the device since reset; 0 on the CPU
// The most that tensors took of it, without what the allocator keeps for later.
std::uint64_t peak_tensor_bytes(at::Device device);
void reset_peak_memory(at::Device device);  // of both
// The most memory that tensors may take on the device. Beyond it the allocator gives back what it
// keeps, then an allocation fails as out of memory. No effect on the CPU.
void limit_memory(at::Device device, std::uint64_t bytes);
std::string device_description(at::Device device);  // "NVIDIA H200, 9.0" or the CPU's name

}  // namespace diptych
