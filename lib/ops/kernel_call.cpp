#include "lib/ops/kernel_call.h"

#include "lib/base/error.h"

namespace diptych::ops {

bool takes_kernel(const char* op, const Tensor& rows, KernelPolicy policy) {
  if (policy == KernelPolicy::reference) return false;
  if (rows.is_cuda()) return true;
  if (policy == KernelPolicy::strict) {
    throw InputError(
        "[{}] kernels: strict, but there are kernels for cuda only and the rows are on {}", op,
        rows.device().str());
  }
  return false;
}

const TuningTable* tuning_for(at::ScalarType dtype, const Kernels& kernels) {
  return dtype == at::kBFloat16 ? kernels.tuning : nullptr;
}

kernels::DType kernel_dtype(at::ScalarType dtype) {
  switch (dtype) {
    case at::kBFloat16:
      return kernels::DType::bf16;
    case at::kHalf:
      return kernels::DType::f16;
    default:
      return kernels::DType::f32;
  }
}

kernels::DType kernel_dtype(const Tensor& rows) {
  return kernel_dtype(rows.scalar_type());
}

kernels::Stored stored_of(const Tensor& values) {
  switch (values.scalar_type()) {
    case at::kFloat8_e4m3fn:
      return kernels::Stored::e4m3;
    case at::kChar:
      return kernels::Stored::i8;
    default:
      return kernels::Stored::plain;
  }
}

}  // namespace diptych::ops
