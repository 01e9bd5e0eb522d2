// Device memory on its way to shared memory past L1 and registers (cp.async), so that as much may
// be under way as shared memory holds. A thread sees its own fetches once it has awaited them; what
// it has read of a place it may fetch to again.
#pragma once

#include "kernels/device_vector.cuh"

namespace diptych::kernels {

// 16 bytes, or 16 zeros where they are not `inside`, which reads nothing.
__device__ __forceinline__ void fetch(uint4* to, const void* from, bool inside) {
  const int bytes = inside ? static_cast<int>(kVectorBytes) : 0;
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
               :
               : "r"(static_cast<unsigned>(__cvta_generic_to_shared(to))),
                 "l"(__cvta_generic_to_global(from)), "r"(bytes)
               : "memory");
}

// Ends a group of this thread's fetches; it may be empty.
__device__ __forceinline__ void end_of_fetches() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}

// Until no more than the last kLeft groups of this thread's fetches are under way.
template <int kLeft>
__device__ __forceinline__ void await_fetches() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kLeft) : "memory");
}

inline int device_attribute(cudaDeviceAttr attribute) {
  int device = 0, value = 0;
  cudaGetDevice(&device);
  cudaDeviceGetAttribute(&value, attribute, device);
  return value;
}

}  // namespace diptych::kernels
