#include <cmath>

#include "kernels/host_float.h"
#include "kernels/rms_norm_rope/rms_norm_rope.h"

namespace diptych::kernels {
namespace {

template <typename T>
void norm(const RmsNormRopeArgs& args, const T* weight, T* x) {
  double squares = 0;
  for (std::int64_t i = 0; i < args.width; ++i) {
    squares += static_cast<double>(widen(x[i])) * static_cast<double>(widen(x[i]));
  }
  const double mean = squares / static_cast<double>(args.width);
  const auto scale = static_cast<float>(1 / std::sqrt(mean + static_cast<double>(args.eps)));
  for (std::int64_t i = 0; i < args.width; ++i)
    x[i] = round_to<T>(widen(x[i]) * scale * widen(weight[i]));
}

template <typename T>
void rotate(const RmsNormRopeArgs& args, std::int64_t position, T* x) {
  const std::int64_t half = args.head_dim / 2;
  for (std::int64_t i = 0; i < args.width; i += 2) {
    const std::int64_t angle = position * half + i % args.head_dim / 2;
    const float a = widen(x[i]), b = widen(x[i + 1]);
    x[i] = round_to<T>(a * args.cos[angle] - b * args.sin[angle]);
    x[i + 1] = round_to<T>(a * args.sin[angle] + b * args.cos[angle]);
  }
}

template <typename T>
void norm_and_rotate(const RmsNormRopeArgs& args) {
  for (std::int64_t row = 0; row < args.rows; ++row) {
    for (int part = 0; part < args.parts; ++part) {
      T* x = static_cast<T*>(args.x) + row * args.x_stride + part * args.width;
      norm<T>(args, static_cast<const T*>(args.weights[part]), x);
      if (args.cos != nullptr) rotate<T>(args, row % args.positions, x);
    }
  }
}

}  // namespace

void rms_norm_rope_ref(const RmsNormRopeArgs& args) {
  with_host_type(args.dtype, [&](auto type) { norm_and_rotate<decltype(type)>(args); });
}

}  // namespace diptych::kernels
