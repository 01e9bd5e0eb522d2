#include "lib/ops/ops.h"

namespace diptych {

// transformers 5, modeling_rope_utils.py, default rope: 1 / base ** (arange(0, d, 2).float() / d).
Tensor rope_frequencies(std::int64_t head_dim, double theta) {
  TORCH_CHECK(head_dim >= 2 && head_dim % 2 == 0, "[rope_frequencies] head_dim is ", head_dim,
              ", expected an even number from 2");
  TORCH_CHECK(theta > 0, "[rope_frequencies] theta is ", theta, ", expected > 0");
  const Tensor exponent = at::arange(0, head_dim, 2, at::kLong).to(at::kFloat).div_(head_dim);
  return at::pow(theta, exponent).reciprocal_();
}

// The same: cos and sin of the float32 product of position and frequency, cast to the dtype of the
// rows.
std::pair<Tensor, Tensor> rope_table(const Tensor& angles, at::ScalarType dtype) {
  TORCH_CHECK(angles.defined() && angles.dim() == 2 && angles.scalar_type() == at::kFloat,
              "[rope_table] angles are not float32 [rows, head_dim / 2]");
  return {angles.cos().to(dtype).to(at::kFloat), angles.sin().to(dtype).to(at::kFloat)};
}

}  // namespace diptych
