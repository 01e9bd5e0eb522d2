#include <algorithm>
#include <cmath>
#include <type_traits>
#include <vector>

#include "kernels/host_float.h"
#include "kernels/rms_norm_silu/rms_norm_silu.h"

namespace diptych::kernels {
namespace {

// `made`: of y, undefined where there is none.
template <typename T, typename P>
void norm_row(const RmsNormSiluArgs& args, std::int64_t row, P* made) {
  const std::int64_t first = row * args.width;
  std::vector<float> sums(static_cast<std::size_t>(args.width));
  double squares = 0;
  for (std::int64_t i = 0; i < args.width; ++i) {
    float sum = args.x == nullptr ? 0 : widen(static_cast<const T*>(args.x)[first + i]);
    for (int part = 0; part < args.part_count; ++part)
      sum += widen(static_cast<const P*>(args.parts[part])[first + i]);
    const T stored = round_to<T>(sum);
    if (args.sum != nullptr) static_cast<T*>(args.sum)[first + i] = stored;
    const float value = sums[static_cast<std::size_t>(i)] = widen(stored);
    squares += static_cast<double>(value) * static_cast<double>(value);
  }
  if (args.y == nullptr) return;
  const double mean = squares / static_cast<double>(args.width);
  const auto scale = static_cast<float>(1 / std::sqrt(mean + static_cast<double>(args.eps)));
  for (std::int64_t i = 0; i < args.width; ++i) {
    float value = sums[static_cast<std::size_t>(i)];
    if (args.weight != nullptr) {
      value = value * scale * widen(static_cast<const T*>(args.weight)[i]);
      value = value / (1 + std::exp(-value));
    }
    made[i] = round_to<P>(value);
  }
}

template <typename T, typename P>
void norm_pairs(const RmsNormSiluArgs& args) {
  const std::int64_t pairs = args.rows / args.frame_rows / 2;
  const auto width = static_cast<std::size_t>(args.width);
  for (std::int64_t row = 0; row < args.frame_rows; ++row) {
    const auto at = [&](void* map, std::int64_t frame, std::int64_t stride) {
      return static_cast<P*>(map) + frame * stride + row * args.width;
    };
    std::vector<std::vector<P>> d;  // the two frames before, then all
    for (std::int64_t f = 0; f < 2; ++f) {
      const P* from = at(args.before, f, args.before_frame_stride);
      d.emplace_back(from, from + args.width);
    }
    for (std::int64_t f = 0; f < 2 * pairs; ++f)
      norm_row<T, P>(args, f * args.frame_rows + row, d.emplace_back(width).data());
    for (std::int64_t pair = 0; pair < pairs; ++pair) {
      const auto* const of = &d[static_cast<std::size_t>(2 * pair)];
      for (std::size_t i = 0; i < width; ++i) {
        const float d0 = widen(of[0][i]), d1 = widen(of[1][i]), d2 = widen(of[2][i]),
                    d3 = widen(of[3][i]);
        const float maps[] = {d1 + d2, d2 - d1, d0 - d2, d3 - d1};
        for (std::int64_t map = 0; map < 4; ++map)
          at(args.y, map * pairs + pair, args.y_frame_stride)[i] = round_to<P>(maps[map]);
      }
    }
    for (std::int64_t f = 0; f < 2; ++f)
      std::ranges::copy(d[d.size() - 2 + static_cast<std::size_t>(f)],
                        at(args.before, f, args.before_frame_stride));
  }
}

}  // namespace

void rms_norm_silu_ref(const RmsNormSiluArgs& args) {
  with_host_type(args.dtype, [&](auto type) {
    with_host_type(args.part_dtype, [&](auto part) {
      using P = decltype(part);
      if (args.before != nullptr) return norm_pairs<decltype(type), P>(args);
      for (std::int64_t row = 0; row < args.rows; ++row) {
        P* made = static_cast<P*>(args.y);
        if (made != nullptr)
          made += row / args.frame_rows * args.y_frame_stride + row % args.frame_rows * args.width;
        norm_row<decltype(type), P>(args, row, made);
      }
    });
  });
}

}  // namespace diptych::kernels
