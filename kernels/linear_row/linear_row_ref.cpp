#include "kernels/host_float.h"
#include "kernels/linear_row/linear_row.h"

namespace diptych::kernels {

void linear_row_ref(const LinearRowArgs& args) {
  with_host_type(args.dtype, [&](auto type) {
    using T = decltype(type);
    const T* x = static_cast<const T*>(args.x);
    for (std::int64_t n = 0; n < args.outputs; ++n) {
      const T* weight = static_cast<const T*>(args.weight) + n * args.inputs;
      double sum = args.bias == nullptr
                       ? 0
                       : static_cast<double>(widen(static_cast<const T*>(args.bias)[n]));
      for (std::int64_t k = 0; k < args.inputs; ++k)
        sum += static_cast<double>(widen(weight[k])) * static_cast<double>(widen(x[k]));
      static_cast<T*>(args.y)[n] = round_to<T>(static_cast<float>(sum));
    }
  });
}

}  // namespace diptych::kernels
