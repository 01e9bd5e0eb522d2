#include "lib/tensor/tf32.h"

namespace diptych {

Tf32Scope::Tf32Scope(bool on)
    : on_(on),
      convolutions_(at::globalContext().allowTF32CuDNN(at::Float32Op::CONV)),
      products_(at::globalContext().allowTF32CuBLAS()) {
  if (!on_) return;
  at::globalContext().setAllowTF32CuDNN(true);
  at::globalContext().setAllowTF32CuBLAS(true);
}

Tf32Scope::~Tf32Scope() {
  if (!on_) return;
  at::globalContext().setAllowTF32CuDNN(convolutions_);
  at::globalContext().setAllowTF32CuBLAS(products_);
}

// T. J. Dekker 1971, "A floating-point technique for extending the available precision": the
// upper 11 of a float32's 24 significant bits.
Tensor round_to_tf32(const Tensor& x) {
  TORCH_CHECK(x.scalar_type() == at::kFloat, "[round_to_tf32] x is ", x.scalar_type(),
              ", expected float32");
  const Tensor spread = x * 8193.0;  // 2^13 + 1
  return spread - (spread - x);
}

}  // namespace diptych
