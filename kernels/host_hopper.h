// The host's part of kernels for compute capability 9.0: maps of what the tensor memory accelerator
// moves, whether there is code for the device, and the launch of a product by clusters.
#pragma once

#include <algorithm>
#include <cstdint>

#include <cuda.h>
#include <cuda_runtime_api.h>

#include "kernels/device_fetch.cuh"
#include "kernels/device_pipeline.cuh"

namespace diptych::kernels {

// How many parts of that size hold the whole.
inline std::int64_t parts_of(std::int64_t whole, std::int64_t part) {
  return (whole + part - 1) / part;
}

enum class TileElement { bf16, f16, e4m3, i8 };
inline std::int64_t element_bytes(TileElement element) {
  return element == TileElement::e4m3 || element == TileElement::i8 ? 1 : 2;
}
inline CUtensorMapDataType map_type(TileElement element) {
  if (element_bytes(element) == 1) return CU_TENSOR_MAP_DATA_TYPE_UINT8;
  return element == TileElement::f16 ? CU_TENSOR_MAP_DATA_TYPE_FLOAT16
                                     : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
}

using EncodeTiled = CUresult(CUtensorMap*, CUtensorMapDataType, cuuint32_t, void*,
                             const cuuint64_t*, const cuuint64_t*, const cuuint32_t*,
                             const cuuint32_t*, CUtensorMapInterleave, CUtensorMapSwizzle,
                             CUtensorMapL2promotion, CUtensorMapFloatOOBfill);

// Of the driver, which is not linked: a build for a machine without one must load. Null: it has
// none of that name.
template <typename Function>
Function* driver_function(const char* name) {
  void* found = nullptr;
  cudaDriverEntryPointQueryResult result = cudaDriverEntryPointSymbolNotFound;
  constexpr unsigned kVersion = 12000;
  cudaGetDriverEntryPointByVersion(name, &found, kVersion, cudaEnableDefault, &result);
  return result == cudaDriverEntryPointSuccess ? reinterpret_cast<Function*>(found) : nullptr;
}
inline EncodeTiled* encode_tiled() {
  static EncodeTiled* const function = driver_function<EncodeTiled>("cuTensorMapEncodeTiled");
  return function;
}

// Tiles of `tile_rows` rows by 128 bytes, of i8 by 64, of a matrix, swizzled within rows of that
// length; elements outside it are 0 or not written. Returns nullptr or the text of the error.
inline const char* make_tile_map(CUtensorMap* map, TileElement element, const void* at,
                                 std::int64_t rows, std::int64_t columns, std::int64_t stride,
                                 int tile_rows) {
  if (encode_tiled() == nullptr) return "the driver has no cuTensorMapEncodeTiled";
  const bool narrow = element == TileElement::i8;
  const std::int64_t size = element_bytes(element);
  const cuuint64_t sizes[] = {static_cast<cuuint64_t>(columns), static_cast<cuuint64_t>(rows)};
  const cuuint64_t strides[] = {static_cast<cuuint64_t>(stride * size)};
  const cuuint32_t tile[] = {static_cast<cuuint32_t>((narrow ? 64 : 128) / size),
                             static_cast<cuuint32_t>(tile_rows)},
                   steps[] = {1, 1};
  const CUresult result =
      encode_tiled()(map, map_type(element), 2, const_cast<void*>(at), sizes, strides, tile, steps,
                     CU_TENSOR_MAP_INTERLEAVE_NONE,
                     narrow ? CU_TENSOR_MAP_SWIZZLE_64B : CU_TENSOR_MAP_SWIZZLE_128B,
                     CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  return result == CUDA_SUCCESS ? nullptr : "the driver takes no tensor map of these sizes";
}

// Boxes of an array, which the accelerator moves one at a time.
template <int kDims>
struct Boxes {
  const void* at;
  std::int64_t sizes[kDims];        // the innermost first; elements outside are 0
  std::int64_t strides[kDims - 1];  // of all but the innermost, which is contiguous
  int box[kDims];                   // innermost 128 bytes, swizzled within rows of that length
};

// Returns nullptr or the text of the error.
template <int kDims>
const char* make_box_map(CUtensorMap* map, TileElement element, const Boxes<kDims>& boxes) {
  if (encode_tiled() == nullptr) return "the driver has no cuTensorMapEncodeTiled";
  cuuint64_t sizes[kDims], strides[kDims - 1];
  cuuint32_t box[kDims], steps[kDims];
  for (int i = 0; i < kDims; ++i) {
    sizes[i] = static_cast<cuuint64_t>(boxes.sizes[i]);
    box[i] = static_cast<cuuint32_t>(boxes.box[i]);
    steps[i] = 1;
    if (i > 0)
      strides[i - 1] = static_cast<cuuint64_t>(boxes.strides[i - 1] * element_bytes(element));
  }
  const CUresult result =
      encode_tiled()(map, map_type(element), kDims, const_cast<void*>(boxes.at), sizes, strides,
                     box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                     CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  return result == CUDA_SUCCESS ? nullptr : "the driver takes no tensor map of these sizes";
}

using EncodeIm2col = CUresult(CUtensorMap*, CUtensorMapDataType, cuuint32_t, void*,
                              const cuuint64_t*, const cuuint64_t*, const int*, const int*,
                              cuuint32_t, cuuint32_t, const cuuint32_t*, CUtensorMapInterleave,
                              CUtensorMapSwizzle, CUtensorMapL2promotion, CUtensorMapFloatOOBfill);

// Of one clip in channels_last, what the accelerator moves at a time: 128 bytes of so many pixels,
// from a place on, at which a kernel begins. These places go from `first` to as far as `last` lies
// from the clip's last pixel, row by row and frame by frame.
struct PixelColumns {
  const void* at;
  std::int64_t sizes[4];  // channels, columns, rows, frames; packed
  int first[3], last[3];  // columns, rows, frames
  int pixels;
};

// Returns nullptr or the text of the error.
inline const char* make_pixel_map(CUtensorMap* map, TileElement element,
                                  const PixelColumns& columns) {
  static EncodeIm2col* const encode = driver_function<EncodeIm2col>("cuTensorMapEncodeIm2col");
  if (encode == nullptr) return "the driver has no cuTensorMapEncodeIm2col";
  constexpr int kDims = 5;  // the last counts clips, of which there is one
  cuuint64_t sizes[kDims], strides[kDims - 1];
  cuuint32_t steps[kDims];
  std::int64_t bytes = element_bytes(element);
  for (int i = 0; i < kDims; ++i) {
    sizes[i] = i + 1 < kDims ? static_cast<cuuint64_t>(columns.sizes[i]) : 1;
    steps[i] = 1;
    if (i + 1 == kDims) break;
    bytes *= columns.sizes[i];
    strides[i] = static_cast<cuuint64_t>(bytes);
  }
  const CUresult result =
      encode(map, map_type(element), kDims, const_cast<void*>(columns.at), sizes, strides,
             columns.first, columns.last, static_cast<cuuint32_t>(128 / element_bytes(element)),
             static_cast<cuuint32_t>(columns.pixels), steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
             CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
             CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  return result == CUDA_SUCCESS ? nullptr : "the driver takes no tensor map of these sizes";
}

// Whether the current device is of compute capability 9.0 and the build has this kernel for it:
// code that was not built for sm_90a is without its body, and so without its barriers in shared
// memory.
template <typename Kernel>
bool has_hopper_code(Kernel* kernel) {
  if (device_attribute(cudaDevAttrComputeCapabilityMajor) != 9 ||
      device_attribute(cudaDevAttrComputeCapabilityMinor) != 0) {
    return false;
  }
  cudaFuncAttributes attributes{};
  return cudaFuncGetAttributes(&attributes, kernel) == cudaSuccess &&
         attributes.sharedSizeBytes > 0;
}

template <int kBlocks = kClusterBlocks>
std::int64_t clusters_at_once() {
  return device_attribute(cudaDevAttrMultiProcessorCount) / kBlocks;
}

inline Tiles make_tiles(std::int64_t down, std::int64_t across) {
  return {down, across, std::min(down * across, clusters_at_once<>())};
}

// Returns nullptr or the text of the error.
template <int kBlocks = kClusterBlocks, int kThreads = kProductThreads, typename... Parameters,
          typename... Arguments>
const char* launch_clusters(void (*kernel)(Parameters...), std::int64_t clusters, int shared_bytes,
                            CUstream_st* stream, const Arguments&... arguments) {
  cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes);
  kernel<<<static_cast<unsigned>(clusters * kBlocks), kThreads,
           static_cast<std::size_t>(shared_bytes), stream>>>(arguments...);
  return launch_error();
}

}  // namespace diptych::kernels
