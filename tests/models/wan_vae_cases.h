// The tiny Wan 2.2 autoencoder on a device: what is recorded of it, and what must agree with
// itself.
#pragma once

#include <filesystem>

#include "lib/models/wan_vae/wan_vae.h"

namespace diptych::wan_vae_cases {

struct On {
  at::Device device{at::kCPU};
  WanVaePrecision precision = {};
  KernelPolicy kernels = KernelPolicy::automatic;
};

std::filesystem::path checkpoint();  // in the released form
WanVae load(const On& on);

// Every convolution of stride 1 goes the way of conv3d() (lib/ops), upsampling by phases.
void take_conv3d(WanVae& vae);

Tensor draw(at::IntArrayRef shape, std::uint64_t seed);             // standard normal, CPU
Tensor decode(const WanVae& vae, const Tensor& latent);             // [3, T, H, W], CPU
double relative_norm(const Tensor& found, const Tensor& expected);  // of the difference

// Case 08: every tensor that a folder holds, at the recorded tolerances. How many there were.
std::size_t check_recorded(const On& on, const std::filesystem::path& folder);
// A clip's beginning is decoded and encoded as if nothing followed it, to the bit; at odd sizes.
void check_beginnings(const On& on);
// bfloat16 beside float32 on the same device, in both directions.
void check_bfloat16(const On& on);
// tf32 beside float32, both on the same device: decoded frames are at most one level of 255 apart,
// and latents by less than `limit` of their norm. `latent` [t, h, w, z].
void check_tf32(const WanVae& exact, const WanVae& vae, const Tensor& latent, double limit);

}  // namespace diptych::wan_vae_cases
