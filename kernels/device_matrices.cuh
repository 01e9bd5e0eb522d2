// The product of small matrices that the tensor cores of every architecture here have.
#pragma once

#include <type_traits>

#include "kernels/device_vector.cuh"

namespace diptych::kernels {

// sums += a * b: 16 rows x 16 elements times 16 elements x 8 columns, in float32. PTX ISA, matrix
// fragments for mma.m16n8k16: of a, a lane holds the elements 2p, 2p + 1 of the rows q (a_0) and
// q + 8 (a_1) and 2p + 8, 2p + 9 of both (a_2, a_3); of b those elements of column q; of the sums
// the columns 2p and 2p + 1 of row q, then of row q + 8. p is its place among four lanes, q the
// four's.
template <typename T>
__device__ __forceinline__ void multiply(float (&sums)[4], unsigned a_0, unsigned a_1, unsigned a_2,
                                         unsigned a_3, unsigned b_0, unsigned b_1) {
  if constexpr (std::is_same_v<T, __half>) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
        : "r"(a_0), "r"(a_1), "r"(a_2), "r"(a_3), "r"(b_0), "r"(b_1));
  } else {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
        : "r"(a_0), "r"(a_1), "r"(a_2), "r"(a_3), "r"(b_0), "r"(b_1));
  }
}
template <typename T>
__device__ __forceinline__ void multiply(float (&sums)[4], const unsigned (&a)[4], unsigned b_0,
                                         unsigned b_1) {
  multiply<T>(sums, a[0], a[1], a[2], a[3], b_0, b_1);
}

}  // namespace diptych::kernels
