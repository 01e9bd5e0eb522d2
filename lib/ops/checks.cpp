#include "lib/ops/checks.h"

namespace diptych::ops {
namespace {

void check_shape(const char* op, const char* name, const Tensor& t, at::IntArrayRef shape) {
  TORCH_CHECK(t.defined(), "[", op, "] ", name, " is undefined");
  TORCH_CHECK(t.sizes() == shape, "[", op, "] ", name, " is ", t.sizes(), ", expected ", shape);
}

void check_device(const char* op, const char* name, const Tensor& t, const Tensor& like) {
  TORCH_CHECK(t.device() == like.device(), "[", op, "] ", name, " is on ", t.device(),
              ", the rows are on ", like.device());
}

}  // namespace

void check_values(const char* op, const char* name, const Tensor& t, at::IntArrayRef shape) {
  check_shape(op, name, t, shape);
  const at::ScalarType dtype = t.scalar_type();
  TORCH_CHECK(dtype == at::kFloat || dtype == at::kBFloat16 || dtype == at::kHalf, "[", op, "] ",
              name, " is ", dtype, ", expected float32, bfloat16 or float16");
  TORCH_CHECK(t.size(-1) <= 1 || t.stride(-1) == 1, "[", op, "] ", name,
              " is not contiguous in its last dimension: strides ", t.strides());
}

void check_values(const char* op, const char* name, const Tensor& t, at::IntArrayRef shape,
                  const Tensor& like) {
  check_values(op, name, t, shape);
  TORCH_CHECK(t.scalar_type() == like.scalar_type(), "[", op, "] ", name, " is ", t.scalar_type(),
              ", the rows are ", like.scalar_type());
  check_device(op, name, t, like);
}

void check_table(const char* op, const char* name, const Tensor& t, at::ScalarType dtype,
                 at::IntArrayRef shape, const Tensor& like) {
  check_shape(op, name, t, shape);
  TORCH_CHECK(t.scalar_type() == dtype, "[", op, "] ", name, " is ", t.scalar_type(), ", expected ",
              dtype);
  TORCH_CHECK(t.is_contiguous(), "[", op, "] ", name, " is not contiguous: strides ", t.strides());
  check_device(op, name, t, like);
}

void check_log_sum_exp(const char* op, const Tensor& sums, const Tensor& q) {
  if (!sums.defined()) return;
  TORCH_CHECK(sums.scalar_type() == at::kFloat && sums.sizes() == q.sizes().slice(0, 2) &&
                  sums.device() == q.device(),
              "[", op, "] log_sum_exp is ", sums.scalar_type(), " ", sums.sizes());
}

void check_row_format(const char* op, Quantization rows) {
  TORCH_CHECK(rows != Quantization::int8, "[", op, "] rows are none or fp8, not int8");
}

bool heads_packed(const Tensor& t) {
  return t.stride(-1) == 1 && (t.size(-2) == 1 || t.stride(-2) == t.size(-1));
}

std::int64_t stride_of(const Tensor& t, std::int64_t dim) {
  return t.size(dim) > 1 ? t.stride(dim) : 0;
}

}  // namespace diptych::ops
