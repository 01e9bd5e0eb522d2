// What every kernel's argument struct is made of. Kernels see plain pointers, sizes, strides and a
// stream; they know neither torch nor lib/.
//
// Of each <op>/<op>.h: `<op>_unsupported(args)` is the reason why the kernel cannot take a call, or
// nullptr, and touches no device; `<op>(args, stream)` launches on the stream without allocating or
// synchronising and returns nullptr or the text of the error; `<op>_ref(args)` is the same
// computation on host memory with the same roundings and is what the kernel is tested against.
// Strides and sizes count elements. Messages are static strings.
#pragma once

#include <cstdint>

struct CUstream_st;  // what cudaStream_t points to

// On what the references compute with, too.
#ifdef __CUDACC__
#define DIPTYCH_HOST_DEVICE __host__ __device__
#else
#define DIPTYCH_HOST_DEVICE
#endif

namespace diptych::kernels {

enum class DType : std::int32_t { f32, bf16, f16 };

// The rows that one set of weights is for, among the rows of a call: a list, each row once, or a
// range. The kernels that route take kRowSets of them (understanding and generation), any of them
// empty; no row is in both, and rows in none are neither read nor written.
struct RowSet {
  const std::int64_t* index = nullptr;  // [count], beside the rows; null: the rows from `first` on
  std::int64_t first = 0, count = 0;
};
inline constexpr int kRowSets = 2;

constexpr std::int64_t element_size(DType dtype) {
  return dtype == DType::f32 ? 4 : 2;
}

// How the elements of a matrix are stored: in the call's dtype, or in a byte each, with a float32
// scale for each row that they are to be multiplied with.
enum class Stored : std::int32_t { plain, e4m3, i8 };

// The largest magnitude of a quantised element.
constexpr float stored_limit(Stored stored) {
  return stored == Stored::e4m3 ? 448.0f : 127.0f;
}

}  // namespace diptych::kernels
