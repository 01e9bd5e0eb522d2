#include "kernels/host_float.h"
#include "kernels/int8_linear/int8_linear.h"

namespace diptych::kernels {
namespace {

template <typename T>
void int8_rows(const Int8LinearArgs& args) {
  for (std::int64_t row = 0; row < args.rows; ++row) {
    const T* x = static_cast<const T*>(args.x) + row * args.x_stride;
    T* y = static_cast<T*>(args.y) + row * args.y_stride;
    for (std::int64_t n = 0; n < args.outputs; ++n) {
      const std::int8_t* weight = args.weight + n * args.inputs;
      double sum = 0;
      for (std::int64_t k = 0; k < args.inputs; ++k)
        sum += static_cast<double>(weight[k]) * static_cast<double>(widen(x[k]));
      sum *= static_cast<double>(args.scales[n]);
      if (args.bias != nullptr)
        sum += static_cast<double>(widen(static_cast<const T*>(args.bias)[n]));
      y[n] = round_to<T>(static_cast<float>(sum));
    }
  }
}

}  // namespace

void int8_linear_ref(const Int8LinearArgs& args) {
  with_host_type(args.dtype, [&](auto type) { int8_rows<decltype(type)>(args); });
}

}  // namespace diptych::kernels
