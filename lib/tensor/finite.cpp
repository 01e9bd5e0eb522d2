#include "lib/tensor/finite.h"

#include "lib/base/interrupt.h"

namespace diptych {

bool all_finite(const Tensor& values) {
  constexpr std::int64_t kPiece = std::int64_t{1} << 24;  // isfinite() makes copies
  for (const Tensor& piece : values.flatten().split(kPiece)) {
    check_interrupted();
    const bool narrow = c10::elementSize(piece.scalar_type()) == 1;  // has no operations of its own
    if (!(narrow ? piece.to(at::kFloat) : piece).isfinite().all().item<bool>()) return false;
  }
  return true;
}

}  // namespace diptych
