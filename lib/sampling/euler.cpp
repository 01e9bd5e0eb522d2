#include "lib/sampling/euler.h"

namespace diptych {

void euler_step_(const Tensor& x, const Tensor& v, const Tensor& size) {
  // The official factor is a Python number, which multiplies in float32. A tensor would be rounded
  // to v's dtype first.
  const Tensor moved = v.to(at::kFloat) * size;
  x.sub_(moved.to(v.scalar_type()));
}

}  // namespace diptych
