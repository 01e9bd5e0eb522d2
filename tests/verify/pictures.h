// Pictures made of whole numbers only, so that other programs can make the same ones.
#pragma once

#include <ATen/ATen.h>

namespace diptych::test {

// rgb[y][x][c] = (7x + 13y + 31c + s * (x y (s + 1) mod 17)) mod 256
inline at::Tensor formula_picture(std::int64_t height, std::int64_t width, std::int64_t s) {
  const auto axis = [](std::int64_t n, at::IntArrayRef shape) {
    return at::arange(n, at::kLong).reshape(shape);
  };
  const auto y = axis(height, {-1, 1, 1}), x = axis(width, {1, -1, 1}), c = axis(3, {1, 1, -1});
  const auto wave = (x * y * (s + 1)).remainder(17) * s;
  return (x * 7 + y * 13 + c * 31 + wave).remainder(256).to(at::kByte);  // [height, width, 3]
}

// Each level of `picture` plus (5 i mod 9) - 4, i its place in memory, cut to 0 to 255.
inline at::Tensor with_noise(const at::Tensor& picture) {
  const auto noise = (at::arange(picture.numel(), at::kLong) * 5).remainder(9) - 4;
  return (picture.to(at::kLong) + noise.reshape(picture.sizes())).clamp(0, 255).to(at::kByte);
}

}  // namespace diptych::test
