// What the kernels of linear_row share on the device.
#pragma once

#include "kernels/device_chain.cuh"
#include "kernels/device_matrices.cuh"
#include "kernels/linear_row/linear_row.h"

namespace diptych::kernels {

// Of an instruction of the tensor cores: outputs, rows, and the lanes that share one.
constexpr int kTile = 16, kEight = 8, kParts = 4;
// Outputs up to which tiles of them are few: two for each multiprocessor of an H200.
constexpr std::int64_t kMostOfFew = 264 * kTile;

// Weights are read once: past L1, first to go from L2.
template <typename T, int kCount>
__device__ __forceinline__ Vector<T, kCount> load_once(const T* from) {
  if constexpr (sizeof(Vector<T, kCount>) == kVectorBytes) {
    const uint4 bits = __ldcs(reinterpret_cast<const uint4*>(from));
    return *reinterpret_cast<const Vector<T, kCount>*>(&bits);
  } else {
    return load<T, kCount>(from);
  }
}

template <typename T>
__device__ __forceinline__ void finish_as(const LinearRowArgs& args, std::int64_t row,
                                          std::int64_t output, float sum) {
  if (args.scales != nullptr) sum *= args.scales[output];
  if (args.x_scales != nullptr) sum *= args.x_scales[row];
  if (args.bias != nullptr) sum += widen(static_cast<const T*>(args.bias)[output]);
  static_cast<T*>(args.y)[row * args.outputs + output] = round_to<T>(sum);
}
// Scales the sum and writes it. Asks for the dtype once an output, so that rows of e4m3 need no
// kernel for each.
__device__ __forceinline__ void finish(const LinearRowArgs& args, std::int64_t row,
                                       std::int64_t output, float sum) {
  switch (args.dtype) {
    case DType::f32:
      return finish_as<float>(args, row, output, sum);
    case DType::bf16:
      return finish_as<__nv_bfloat16>(args, row, output, sum);
    case DType::f16:
      return finish_as<__half>(args, row, output, sum);
  }
}

// linear_row_tiles.cu: quantised weights on tensor cores. Everything is aligned, 16 divides the
// inputs, and rows are e4m3 or of 16 bits.
void launch_linear_tiles(const LinearRowArgs& args, CUstream_st* stream);
// linear_row_plain.cu: weights of 16 bits, as are the rows, on tensor cores. Everything is aligned
// and 8 divides the inputs.
void launch_linear_plain(const LinearRowArgs& args, CUstream_st* stream);

}  // namespace diptych::kernels
