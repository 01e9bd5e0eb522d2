// Kernels of a few rows in a row, each too short to fill the device alone (programmatic dependent
// launch, CUDA Programming Guide): the blocks of one are started while those of the one before it
// end, and fetch their weights meanwhile.
#pragma once

#include <cstdint>

#include <cuda_runtime.h>

#include "kernels/device_fetch.cuh"

namespace diptych::kernels {

// Rows up to which a kernel is launched in a chain: its blocks leave room for those of the next.
inline constexpr std::int64_t kChainedRows = 64;

// Waits until all that was launched before this kernel has ended and what it wrote is there. A
// kernel that launch_chained() launches calls it before it reads or writes anything but weights. It
// may ask for other data ahead, where nothing but speed depends on the values.
__device__ __forceinline__ void await_predecessors() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// The next kernel of a chain may be started once all blocks of this one have come here.
__device__ __forceinline__ void let_next_start() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// Whether the device can overlap kernels, and runs code for its own major compute capability, which
// is compiled with the waiting above, and not that of an older one, which the driver has
// translated.
inline bool can_chain() {
  constexpr int kFirstMajor = 9, kArchitectures[] = {__CUDA_ARCH_LIST__};  // 800 is 8.0
  const int major = device_attribute(cudaDevAttrComputeCapabilityMajor);
  const int minor = device_attribute(cudaDevAttrComputeCapabilityMinor);
  if (major < kFirstMajor) return false;
  for (const int architecture : kArchitectures) {
    if (architecture / 100 == major && architecture % 100 / 10 <= minor) return true;
  }
  return false;
}

struct Chaining {
  bool chained = true;   // else as usual
  unsigned cluster = 0;  // blocks of one; 0: there are none
};

// Launches a kernel that calls await_predecessors().
template <typename... Parameters>
void launch_chained(const Chaining& chaining, void (*kernel)(Parameters...), dim3 grid, dim3 block,
                    std::size_t shared_bytes, CUstream_st* stream, Parameters... parameters) {
  cudaLaunchAttribute attributes[2] = {};
  unsigned count = 0;
  if (chaining.chained && can_chain()) {
    attributes[count].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[count++].val.programmaticStreamSerializationAllowed = 1;
  }
  if (chaining.cluster > 0) {
    attributes[count].id = cudaLaunchAttributeClusterDimension;
    attributes[count++].val.clusterDim = {chaining.cluster, 1, 1};
  }
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = block;
  config.dynamicSmemBytes = shared_bytes;
  config.stream = stream;
  config.attrs = attributes;
  config.numAttrs = count;
  cudaLaunchKernelEx(&config, kernel, parameters...);
}

}  // namespace diptych::kernels
