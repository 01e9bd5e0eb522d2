#include "tests/kernels/conv3d_cases.h"

#include <cmath>
#include <vector>

#include <doctest/doctest.h>
#include <fmt/format.h>

#include "tests/kernels/closeness.h"

namespace diptych::testing {
namespace {

struct Case {
  std::int64_t frames, height, width, inputs, outputs;  // frames: of y, before phases
  std::int64_t taps[3] = {3, 3, 3};                     // frames, rows, columns
  std::int64_t top = 1, left = 1, bottom = 1, right = 1;
  std::int64_t frame_phases = 1, side_phases = 1;
  std::int64_t shortcut_step = 0, shortcut_first = 0, shortcut_phases = 1;  // step 0: none
  bool biased = true;
  std::int64_t gap = 0;  // between the weights of two outputs
  bool pairs = false;    // `frames` counts them

  std::int64_t x_frames() const { return pairs ? 4 * frames : frames + taps[0] - 1; }
  std::int64_t y_frames() const { return pairs ? 2 * frames : frames; }  // before phases
  std::int64_t weight_frames() const { return pairs ? 5 : taps[0]; }
};

// Of x and the weights, and of y and the shortcut.
struct Types {
  at::ScalarType x, y;
};

std::string describe(const Case& c, Types types) {
  return fmt::format("{} to {} {}{}x{}x{}, {} -> {}, taps {}x{}x{}, phases {} and {}, shortcut {}",
                     c10::toString(types.x), c10::toString(types.y), c.pairs ? "2x" : "", c.frames,
                     c.height, c.width, c.inputs, c.outputs, c.taps[0], c.taps[1], c.taps[2],
                     c.frame_phases, c.side_phases, c.shortcut_step);
}

// The channel of a shortcut that an output of a phase takes.
std::int64_t shortcut_channel(const Case& c, std::int64_t output, std::int64_t phase) {
  return (output * c.shortcut_phases + c.shortcut_first + phase) * c.shortcut_step /
         c.shortcut_phases;
}

// Of pairs of frames: float64 [2 * frames, h, w, outputs].
Tensor expect_pairs(const Case& c, const Tensor& x, const Tensor& weight, const Tensor& bias,
                    std::int64_t h, std::int64_t w) {
  const auto convolve = [&](std::int64_t map, std::int64_t of_weight) {
    const Tensor frames = x.narrow(0, map * c.frames, c.frames).to(at::kDouble);
    const Tensor padded =
        at::constant_pad_nd(frames.permute({0, 3, 1, 2}), {c.left, c.right, c.top, c.bottom});
    const Tensor kernel = weight[0].select(1, of_weight).to(at::kDouble).permute({0, 3, 1, 2});
    return at::conv2d(padded.contiguous(), kernel.contiguous()).narrow(2, 0, h).narrow(3, 0, w);
  };
  const Tensor both = convolve(0, 0), differing = convolve(1, 1);
  const Tensor first = both + differing + convolve(2, 2);
  const Tensor second = both - differing + convolve(3, 4);
  const Tensor sums = at::stack({first, second}, 1).flatten(0, 1).permute({0, 2, 3, 1});
  return bias.defined() ? sums + bias.to(at::kDouble) : sums;
}

// float64 [frames * frame_phases, side_phases * h', side_phases * w', outputs] before the shortcut,
// and what that adds.
struct Expected {
  Tensor sums, added;
};
Expected expect(const Case& c, const Tensor& x, const Tensor& weight, const Tensor& bias,
                const Tensor& shortcut, std::int64_t h, std::int64_t w) {
  const std::int64_t side = c.side_phases;
  const auto options = x.options().dtype(at::kDouble);
  const std::vector<std::int64_t> sizes{c.y_frames() * c.frame_phases, side * h, side * w,
                                        c.outputs};
  Expected expected{at::zeros(sizes, options), at::zeros(sizes, options)};
  if (c.pairs) {
    expected.sums.copy_(expect_pairs(c, x, weight, bias, h, w));
    if (shortcut.defined()) expected.added.copy_(shortcut);
    return expected;
  }
  for (std::int64_t phase = 0; phase < c.frame_phases * side * side; ++phase) {
    const std::int64_t f = phase / (side * side), row = phase / side % side, column = phase % side;
    const Tensor clip = x.narrow(3, f * c.inputs, c.inputs).to(at::kDouble).permute({3, 0, 1, 2});
    const Tensor padded = at::constant_pad_nd(
        clip, {c.left - column, c.right + column, c.top - row, c.bottom + row, 0, 0});
    const Tensor kernel = weight[phase % (side * side)].to(at::kDouble).permute({0, 4, 1, 2, 3});
    const Tensor made = at::conv3d(padded.unsqueeze(0).contiguous(), kernel.contiguous(),
                                   bias.defined() ? bias.to(at::kDouble) : Tensor())
                            .squeeze(0)
                            .permute({1, 2, 3, 0});
    const auto of_phase = [&](const Tensor& all) {
      return all.view({c.frames, c.frame_phases, h, side, w, side, c.outputs})
          .select(5, column)
          .select(3, row)
          .select(1, f);
    };
    of_phase(expected.sums).copy_(made.narrow(1, 0, h).narrow(2, 0, w));
    if (!shortcut.defined()) continue;
    std::vector<std::int64_t> channels;
    for (std::int64_t n = 0; n < c.outputs; ++n) channels.push_back(shortcut_channel(c, n, phase));
    const Tensor index = at::tensor(channels, at::kLong).to(shortcut.device());
    of_phase(expected.added).copy_(shortcut.index_select(3, index));
  }
  return expected;
}

void check(const Runner<kernels::Conv3dArgs>& kernel, at::Generator& generator, const Case& c,
           Types types) {
  const std::string what = describe(c, types);
  CAPTURE(what);
  const auto draw_of = [&](at::ScalarType dtype, at::IntArrayRef sizes, double scale) {
    return (at::randn(sizes, generator, at::kFloat) * scale).to(dtype).to(kernel.device);
  };
  const auto draw = [&](at::IntArrayRef sizes, double scale) {
    return draw_of(types.x, sizes, scale);
  };
  const std::int64_t side = c.side_phases, extra = side - 1;
  const std::int64_t h = c.height + c.top + c.bottom - c.taps[1] + 1 - extra;
  const std::int64_t w = c.width + c.left + c.right - c.taps[2] + 1 - extra;
  const std::int64_t of_output = c.weight_frames() * c.taps[1] * c.taps[2] * c.inputs;
  const Tensor x = draw({c.x_frames(), c.height, c.width, c.frame_phases * c.inputs}, 1);
  const Tensor all = draw({side * side, c.outputs, of_output + c.gap},
                          1 / std::sqrt(static_cast<double>(of_output)));
  const Tensor weight =
      all.narrow(2, 0, of_output).unflatten(2, {c.weight_frames(), c.taps[1], c.taps[2], c.inputs});
  const Tensor bias = c.biased ? draw({c.outputs}, 1) : Tensor();
  const Tensor shortcut =
      c.shortcut_step > 0 ? draw_of(types.y, {c.y_frames(), h, w, c.shortcut_step * c.outputs}, 1)
                          : Tensor();
  constexpr std::int64_t kMargin = 64;
  constexpr double kCanary = -77;
  const std::int64_t count_of_y = c.y_frames() * c.frame_phases * side * h * side * w * c.outputs;
  const Tensor field = at::full({count_of_y + 2 * kMargin}, kCanary, x.options().dtype(types.y));
  const Tensor y = field.narrow(0, kMargin, count_of_y);

  kernels::Conv3dArgs args;
  args.x = x.data_ptr();
  args.weight = all.data_ptr();
  args.weight_stride = of_output + c.gap;
  args.bias = c.biased ? bias.data_ptr() : nullptr;
  args.y = y.data_ptr();
  args.frames = c.frames;
  args.height = c.height;
  args.width = c.width;
  args.inputs = c.inputs;
  args.outputs = c.outputs;
  args.frame_taps = c.taps[0];
  args.pairs = c.pairs;
  args.row_taps = c.taps[1];
  args.column_taps = c.taps[2];
  args.top = c.top;
  args.left = c.left;
  args.y_height = h;
  args.y_width = w;
  args.frame_phases = c.frame_phases;
  args.side_phases = side;
  if (shortcut.defined()) {
    args.shortcut = shortcut.data_ptr();
    args.shortcut_step = c.shortcut_step;
    args.shortcut_first = c.shortcut_first;
    args.shortcut_phases = c.shortcut_phases;
  }
  args.dtype = kernel_dtype(types.x);
  args.y_dtype = kernel_dtype(types.y);
  kernel.run(args);

  const auto [sums, added] = expect(c, x, weight, bias, shortcut, h, w);
  const Tensor expected = sums + added;
  // Rounded once, and once more behind the shortcut; sums of float32 in some order.
  const auto step = [](at::ScalarType dtype) {
    return dtype == at::kFloat ? 1e-6 : dtype == at::kBFloat16 ? 0x1p-7 : 0x1p-10;
  };
  const Tensor allowed = 0.51 * (sums.abs() * step(types.x) +
                                 (shortcut.defined() ? step(types.y) : 0.0) * expected.abs()) +
                         1e-4;
  const Tensor apart = (y.view(expected.sizes()).to(at::kDouble) - expected).abs();
  CHECK(count((apart <= allowed).logical_not()) == 0);  // a NaN, too
  CHECK(expected.std().item<double>() > 0.5);
  CHECK(count(field.narrow(0, 0, kMargin) != kCanary) == 0);
  CHECK(count(field.narrow(0, kMargin + count_of_y, kMargin) != kCanary) == 0);
}

// A map of the results' sizes is added.
constexpr Case with_shortcut(Case c) {
  c.shortcut_step = 1;
  return c;
}

// Of so many pairs of frames.
constexpr Case with_pairs(Case c) {
  c.pairs = true;
  c.taps[0] = kernels::kConv3dPairMaps;
  return c;
}

constexpr Types kTypes[] = {{at::kFloat, at::kFloat},
                            {at::kBFloat16, at::kBFloat16},
                            {at::kHalf, at::kHalf},
                            {at::kHalf, at::kFloat}};

void check_all(const Runner<kernels::Conv3dArgs>& kernel, std::span<const Case> cases) {
  at::Generator generator = at::detail::createCPUGenerator(41);
  for (const Types types : kTypes) {
    // The reference alone takes maps of float32.
    if (types.x == at::kFloat && !kernel.device.is_cpu()) continue;
    for (const Case& c : cases) check(kernel, generator, c, types);
  }
}

}  // namespace

void check_conv3d(const Runner<kernels::Conv3dArgs>& kernel) {
  const Case cases[] = {
      {1, 3, 5, 16, 8},
      {2, 5, 7, 72, 40},                         // parts of a tile and of a piece
      {3, 9, 15, 8, 24, {3, 3, 3}, 0, 1, 0, 1},  // rows come with their halo; more than a tile
      {2, 6, 9, 64, 200, {3, 1, 1}, 0, 0, 0, 0},
      {1, 4, 6, 24, 16, {1, 3, 3}},
      {1, 4, 6, 24, 16, {1, 2, 3}, 0, 2, 1, 1},
      {.frames = 1,
       .height = 4,
       .width = 6,
       .inputs = 24,
       .outputs = 16,
       .taps = {1, 3, 3},
       .biased = false,
       .gap = 2 * 9 * 24},
      {.frames = 2,
       .height = 4,
       .width = 5,
       .inputs = 64,
       .outputs = 24,
       .taps = {1, 2, 2},
       .side_phases = 2},
      {.frames = 2,
       .height = 6,
       .width = 5,
       .inputs = 64,
       .outputs = 24,
       .taps = {1, 2, 2},
       .top = 0,
       .bottom = 0,
       .frame_phases = 2,
       .side_phases = 2,
       .shortcut_step = 1,
       .shortcut_phases = 8},
      {.frames = 1,
       .height = 4,
       .width = 5,
       .inputs = 64,
       .outputs = 24,
       .taps = {1, 2, 2},
       .side_phases = 2,
       .shortcut_step = 1,
       .shortcut_first = 4,
       .shortcut_phases = 8},
      {.frames = 2,
       .height = 4,
       .width = 5,
       .inputs = 32,
       .outputs = 40,
       .taps = {1, 2, 2},
       .side_phases = 2,
       .shortcut_step = 2,
       .shortcut_phases = 4},
      {.frames = 1,
       .height = 4,
       .width = 5,
       .inputs = 32,
       .outputs = 8,
       .taps = {1, 2, 2},
       .side_phases = 2,
       .shortcut_step = 4,
       .shortcut_phases = 4},
      with_pairs({1, 3, 5, 16, 8}),
      with_pairs({2, 5, 7, 72, 40, {3, 3, 3}, 0, 1, 0, 1}),
      with_pairs(with_shortcut({2, 9, 15, 8, 24})),
  };
  check_all(kernel, cases);
}

void check_conv3d_of_many_tiles(const Runner<kernels::Conv3dArgs>& kernel) {
  const Case cases[] = {
      {1, 30, 53, 512, 1024},           // fewer tiles than clusters
      {1, 8, 12, 384, 384, {1, 3, 3}},  // and fewer pieces
      {4, 92, 107, 96, 96},             // tiles of 96 outputs
      {4, 60, 106, 128, 384},
      with_shortcut({4, 92, 107, 96, 96}),
      with_shortcut({4, 60, 106, 128, 384}),
      with_shortcut({1, 30, 53, 512, 1024}),
      {4, 62, 107, 192, 512, {3, 3, 3}, 0, 1, 0, 1},
      with_pairs({2, 60, 106, 128, 384}),
      with_pairs({1, 60, 107, 512, 1024, {3, 3, 3}, 0, 1, 0, 1}),
      with_pairs(with_shortcut({2, 92, 107, 96, 96})),
      with_pairs(with_shortcut({1, 30, 53, 64, 512})),  // fewer pieces than clusters
      {.frames = 2,
       .height = 60,
       .width = 53,
       .inputs = 576,
       .outputs = 256,
       .taps = {1, 2, 2},
       .frame_phases = 2,
       .side_phases = 2,
       .shortcut_step = 2,
       .shortcut_phases = 8},
  };
  check_all(kernel, cases);
}

}  // namespace diptych::testing
