#include <algorithm>

#include "lib/models/umt5/umt5.h"

namespace diptych {

std::int64_t umt5_weight_bytes(const Umt5Config& config, at::ScalarType dtype) {
  std::int64_t count = 0;
  for (const TensorShape& tensor : umt5_layout(config)) {
    std::int64_t elements = 1;
    for (const std::int64_t size : tensor.shape) elements *= size;
    count += elements;
  }
  return count * static_cast<std::int64_t>(c10::elementSize(dtype));
}

std::int64_t umt5_encode_bytes(const Umt5Config& c, std::int64_t n, at::ScalarType dtype) {
  const std::int64_t wide = sizeof(float);
  const auto element = static_cast<std::int64_t>(c10::elementSize(dtype));
  const std::int64_t scores = c.num_heads * n * n;
  const std::int64_t always = (n * c.d_model + scores) * element;  // x and the bias
  // The table's columns, taken and turned around.
  const std::int64_t biased = scores * element + (2 * n - 1) * c.num_heads * element;
  const std::int64_t normed = n * c.d_model * (element + 2 * wide);
  // The normed rows, q, k and scores; then scores, their shares in float32 and, of another dtype,
  // its scores in float32 too (on the CPU) or the rounded shares.
  const std::int64_t row = n * c.d_model * element, projected = n * c.inner() * element;
  const std::int64_t converted = element == wide ? 0 : scores * wide;
  const std::int64_t attended =
      row + std::max(2 * projected + scores * element, scores * (element + wide) + converted) +
      2 * projected;
  const std::int64_t gated = row + (c.gated_gelu ? 3 : 1) * n * c.d_ff * element + row;
  return always + std::max({biased, normed, attended, gated});
}

}  // namespace diptych
