#include "kernels/host_float.h"
#include "kernels/linear_row/linear_row.h"

namespace diptych::kernels {
namespace {

template <typename T, typename X, typename W>
void linear_row(const LinearRowArgs& args, std::int64_t row) {
  const X* x = static_cast<const X*>(args.x) + row * args.inputs;
  T* y = static_cast<T*>(args.y) + row * args.outputs;
  for (std::int64_t n = 0; n < args.outputs; ++n) {
    const W* weight = static_cast<const W*>(args.weight) + n * args.inputs;
    double sum = 0;
    for (std::int64_t k = 0; k < args.inputs; ++k)
      sum += static_cast<double>(widen(weight[k])) * static_cast<double>(widen(x[k]));
    if (args.scales != nullptr) sum *= static_cast<double>(args.scales[n]);
    if (args.x_scales != nullptr) sum *= static_cast<double>(args.x_scales[row]);
    if (args.bias != nullptr)
      sum += static_cast<double>(widen(static_cast<const T*>(args.bias)[n]));
    y[n] = round_to<T>(static_cast<float>(sum));
  }
}

}  // namespace

void linear_row_ref(const LinearRowArgs& args) {
  with_host_type(args.dtype, [&](auto type) {
    using T = decltype(type);
    for (std::int64_t row = 0; row < args.rows; ++row) {
      if (args.stored == Stored::plain) {
        linear_row<T, T, T>(args, row);
      } else if (args.x_scales != nullptr) {
        linear_row<T, HostE4m3, HostE4m3>(args, row);
      } else {
        with_host_stored(args.stored,
                         [&](auto stored) { linear_row<T, T, decltype(stored)>(args, row); });
      }
    }
  });
}

}  // namespace diptych::kernels
