#include "lib/session/result.h"

#include "lib/tensor/finite.h"

namespace diptych {

void require_finite(const Tensor& values, std::string_view what) {
  if (values.isfinite().all().item<bool>()) return;
  throw NotFinite("{} is not finite (NaN or infinity): weights, start noise or scales out of range",
                  what);
}

}  // namespace diptych
