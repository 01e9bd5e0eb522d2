// What a Wan autoencoder computes in.
#pragma once

#include "lib/base/choices.h"
#include "lib/tensor/types.h"

namespace diptych {

// tf32: convolutions run in float16, whose fraction has TF32's 10 bits: their weights and inputs,
// and what becomes of these for pairs of frames (wan_vae_takes_pairs), are rounded to it, sums are
// float32, results come back in float16, three of them of a convolution that is split into its taps
// (wan_vae_splits_taps). They are added to maps in float32, by conv3d() or by the next norm; those
// of an encoder's first convolution are added in float16. Everything else, the maps between them,
// norms, products of 1x1 kernels and attention, is float32; on a GPU the 1x1 products of blocks and
// attention are made of parts in float16 (ops/split_products.h). Unlike TF32, float16 ends at
// 65504: beyond it a result is not finite.
struct WanVaePrecision {
  at::ScalarType maps = at::kFloat;      // and of the weights as they are read
  at::ScalarType products = at::kFloat;  // of convolutions' operands and results
  // What a pass takes of a device's memory depends on these, too: whether conv3d() of lib/ops has
  // kernels, and whether 1x1 products and attention are made of parts.
  bool conv3d = false, parts = false;

  WanVaePrecision() = default;
  // Everything in one dtype: float32 or bfloat16.
  WanVaePrecision(at::ScalarType dtype) : maps(dtype), products(dtype) {}  // NOLINT: converts
  static WanVaePrecision tf32() {
    WanVaePrecision mixed;
    mixed.products = at::kHalf;
    return mixed;
  }
  // The same on a device: there is more to say then.
  WanVaePrecision on(at::Device device, KernelPolicy kernels) const;
  bool is_tf32() const { return products == at::kHalf; }
  VaeDtype name() const {
    if (is_tf32()) return VaeDtype::tf32;
    return maps == at::kFloat ? VaeDtype::float32 : VaeDtype::bfloat16;
  }
};

}  // namespace diptych
