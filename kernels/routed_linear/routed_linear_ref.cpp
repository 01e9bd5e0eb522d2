#include "kernels/host_float.h"
#include "kernels/routed_linear/routed_linear.h"
#include "kernels/row_sets.h"

namespace diptych::kernels {
namespace {

template <typename T, typename X>
void multiply_row(const RoutedLinearArgs& args, const RoutedLinearArgs::Set& set,
                  std::int64_t row) {
  const X* x = static_cast<const X*>(args.x) + row * args.x_stride;
  T* y = static_cast<T*>(args.y) + row * args.y_stride;
  for (std::int64_t n = 0; n < args.outputs; ++n) {
    const X* weight = static_cast<const X*>(set.weight) + n * args.inputs;
    double sum = 0;
    for (std::int64_t k = 0; k < args.inputs; ++k)
      sum += static_cast<double>(widen(weight[k])) * static_cast<double>(widen(x[k]));
    if (set.scales != nullptr) sum *= static_cast<double>(set.scales[n]);
    if (args.x_scales != nullptr) sum *= static_cast<double>(args.x_scales[row]);
    if (set.bias != nullptr) sum += static_cast<double>(widen(static_cast<const T*>(set.bias)[n]));
    y[n] = round_to<T>(static_cast<float>(sum));
  }
}

}  // namespace

void routed_linear_ref(const RoutedLinearArgs& args) {
  with_host_type(args.dtype, [&](auto type) {
    using T = decltype(type);
    for (const RoutedLinearArgs::Set& set : args.sets) {
      for_rows(set.rows, args.rows, [&](std::int64_t row) {
        args.stored == Stored::plain ? multiply_row<T, T>(args, set, row)
                                     : multiply_row<T, HostE4m3>(args, set, row);
      });
    }
  });
}

}  // namespace diptych::kernels
