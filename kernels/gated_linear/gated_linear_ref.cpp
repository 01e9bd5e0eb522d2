#include <cmath>

#include "kernels/gated_linear/gated_linear.h"
#include "kernels/host_float.h"

namespace diptych::kernels {
namespace {

template <typename T>
float product(const T* x, const T* weight, std::int64_t inputs) {
  double sum = 0;
  for (std::int64_t k = 0; k < inputs; ++k)
    sum += static_cast<double>(widen(weight[k])) * static_cast<double>(widen(x[k]));
  return rounded<T>(static_cast<float>(sum));
}

template <typename T>
void gated_rows(const GatedLinearArgs& args) {
  const T* weight = static_cast<const T*>(args.weight);
  for (std::int64_t row = 0; row < args.rows; ++row) {
    const T* x = static_cast<const T*>(args.x) + row * args.x_stride;
    T* y = static_cast<T*>(args.y) + row * args.y_stride;
    for (std::int64_t n = 0; n < args.inner; ++n) {
      const float gate = product(x, weight + n * args.inputs, args.inputs);
      const float up = product(x, weight + (args.inner + n) * args.inputs, args.inputs);
      y[n] = round_to<T>(rounded<T>(gate / (1 + std::exp(-gate))) * up);
    }
  }
}

}  // namespace

void gated_linear_ref(const GatedLinearArgs& args) {
  with_host_type(args.dtype, [&](auto type) { gated_rows<decltype(type)>(args); });
}

}  // namespace diptych::kernels
