#include "kernels/conv3d/conv3d.h"
#include "kernels/host_float.h"

namespace diptych::kernels {
namespace {

// A pixel of y and its place in the phase that makes it; frame_phase counts the frames of a pair,
// too.
struct Pixel {
  std::int64_t frame, row, column;
  std::int64_t frame_phase, row_phase, column_phase;
  std::int64_t phase(std::int64_t side) const {
    return (frame_phase * side + row_phase) * side + column_phase;
  }
};

// One tap in time: x_frame of x by the frame `tap` of weights.
template <typename T>
double sum_of_frame(const Conv3dArgs& args, const Pixel& at, std::int64_t output,
                    std::int64_t x_frame, std::int64_t tap) {
  const std::int64_t side = args.side_phases, weights = at.phase(side) % (side * side);
  const T* weight = static_cast<const T*>(args.weight) +
                    (weights * args.outputs + output) * args.weight_stride +
                    tap * args.row_taps * args.column_taps * args.inputs;
  double sum = 0;
  for (std::int64_t b = 0; b < args.row_taps; ++b) {
    for (std::int64_t c = 0; c < args.column_taps; ++c, weight += args.inputs) {
      const std::int64_t i = at.row + at.row_phase + b - args.top;
      const std::int64_t j = at.column + at.column_phase + c - args.left;
      if (i < 0 || i >= args.height || j < 0 || j >= args.width) continue;
      const std::int64_t pixel = (x_frame * args.height + i) * args.width + j;
      const std::int64_t phase = args.pairs ? 0 : at.frame_phase;
      const T* x =
          static_cast<const T*>(args.x) + (pixel * args.frame_phases + phase) * args.inputs;
      for (std::int64_t k = 0; k < args.inputs; ++k)
        sum += static_cast<double>(widen(weight[k])) * static_cast<double>(widen(x[k]));
    }
  }
  return sum;
}

template <typename T>
float sum_of(const Conv3dArgs& args, const Pixel& at, std::int64_t output) {
  const auto of_frame = [&](std::int64_t x_frame, std::int64_t tap) {
    return sum_of_frame<T>(args, at, output, x_frame, tap);
  };
  if (args.pairs) {
    const auto of_map = [&](std::int64_t map) {
      return of_frame(map * args.frames + at.frame, map + (map == kConv3dPairMaps - 1 ? 1 : 0));
    };
    return static_cast<float>(at.frame_phase == 0 ? of_map(0) + of_map(1) + of_map(2)
                                                  : of_map(0) - of_map(1) + of_map(3));
  }
  double sum = 0;
  for (std::int64_t a = 0; a < args.frame_taps; ++a) sum += of_frame(at.frame + a, a);
  return static_cast<float>(sum);
}

// M: of y and the shortcut.
template <typename T, typename M>
void make_pixel(const Conv3dArgs& args, const Pixel& at) {
  const std::int64_t side = args.side_phases;
  const std::int64_t frames_each = args.pairs ? 2 : args.frame_phases;
  const std::int64_t frame = at.frame * frames_each + at.frame_phase;
  const std::int64_t row = frame * args.y_height * side + at.row * side + at.row_phase;
  const std::int64_t y_pixel = row * args.y_width * side + at.column * side + at.column_phase;
  const T* bias = static_cast<const T*>(args.bias);
  const std::int64_t phase_pixel =
      ((args.pairs ? frame : at.frame) * args.y_height + at.row) * args.y_width + at.column;
  for (std::int64_t n = 0; n < args.outputs; ++n) {
    const float offset = bias == nullptr ? 0.0f : widen(bias[n]);
    M& y = static_cast<M*>(args.y)[y_pixel * args.outputs + n];
    y = round_to<M>(widen(round_to<T>(sum_of<T>(args, at, n) + offset)));
    if (args.shortcut == nullptr) continue;
    const std::int64_t phase = (args.pairs ? 0 : at.phase(side)) + args.shortcut_first;
    const std::int64_t channel =
        (n * args.shortcut_phases + phase) * args.shortcut_step / args.shortcut_phases;
    y = round_to<M>(widen(y) +
                    widen(static_cast<const M*>(
                        args.shortcut)[phase_pixel * args.shortcut_step * args.outputs + channel]));
  }
}

template <typename T, typename M>
void convolve(const Conv3dArgs& args) {
  Pixel at{};
  for (at.frame = 0; at.frame < args.frames; ++at.frame) {
    for (at.row = 0; at.row < args.y_height; ++at.row) {
      for (at.column = 0; at.column < args.y_width; ++at.column) {
        for (std::int64_t phase = 0; phase < (args.pairs ? 2 : args.phases()); ++phase) {
          const std::int64_t side = args.side_phases;
          at.frame_phase = phase / (side * side);
          at.row_phase = phase / side % side;
          at.column_phase = phase % side;
          make_pixel<T, M>(args, at);
        }
      }
    }
  }
}

}  // namespace

void conv3d_ref(const Conv3dArgs& args) {
  with_host_type(args.dtype, [&](auto type) {
    with_host_type(args.y_dtype, [&](auto map) { convolve<decltype(type), decltype(map)>(args); });
  });
}

}  // namespace diptych::kernels
