#include "lib/ops/conv3d.h"

#include <vector>

#include "lib/ops/checks.h"
#include "lib/ops/kernel_call.h"

namespace diptych {
namespace {

constexpr const char* kOp = "conv3d";

static_assert(kPairedTaps == kernels::kConv3dPairWeights);

// Whether so many tenths of all parts that hold `count` are there.
bool fills(std::int64_t count, std::int64_t part, std::int64_t tenths) {
  return 10 * count >= tenths * ((count + part - 1) / part) * part;
}

// Sizes of a call, without pointers.
kernels::Conv3dArgs sizes_of(const Tensor& x, const Conv3d& conv) {
  const Tensor& weight = conv.weight;
  const std::int64_t phases = conv.side_phases * conv.side_phases;
  TORCH_CHECK(x.dim() == 4 && x.is_contiguous(), "[", kOp, "] x is ", x.sizes(), " with strides ",
              x.strides(), ", expected a contiguous [n, h, w, c]");
  TORCH_CHECK(weight.dim() == 6 && weight.size(0) == phases &&
                  weight.size(5) * conv.frame_phases == x.size(3) &&
                  weight.select(0, 0).select(0, 0).is_contiguous() &&
                  (phases == 1 || weight.stride(0) == weight.size(1) * weight.stride(1)),
              "[", kOp, "] weight is ", weight.sizes(), " with strides ", weight.strides(),
              ", expected [", phases, ", out, t, rows, columns, in] for ", x.size(3), " channels");
  kernels::Conv3dArgs args;
  args.outputs = weight.size(1);
  args.frame_taps = conv.pairs ? kernels::kConv3dPairMaps : weight.size(2);
  args.pairs = conv.pairs;
  TORCH_CHECK(!conv.pairs || (weight.size(2) == kernels::kConv3dPairWeights && phases == 1 &&
                              conv.frame_phases == 1 && x.size(0) % kernels::kConv3dPairMaps == 0),
              "[", kOp, "] x is ", x.sizes(), " and weight ", weight.sizes(),
              ", expected four maps of pairs, five frames of taps and no phases");
  args.row_taps = weight.size(3);
  args.column_taps = weight.size(4);
  args.inputs = weight.size(5);
  args.frames = conv.pairs ? x.size(0) / args.frame_taps : x.size(0) - args.frame_taps + 1;
  args.height = x.size(1);
  args.width = x.size(2);
  args.top = conv.row_padding;
  args.left = conv.column_padding;
  args.y_height = args.height + 2 * args.top - args.row_taps - conv.side_phases + 2;
  args.y_width = args.width + 2 * args.left - args.column_taps - conv.side_phases + 2;
  TORCH_CHECK(args.frames > 0 && args.y_height > 0 && args.y_width > 0, "[", kOp, "] x is ",
              x.sizes(), ", too small for weight ", weight.sizes());
  args.frame_phases = conv.frame_phases;
  args.side_phases = conv.side_phases;
  args.shortcut_first = conv.shortcut_first;
  args.shortcut_phases = conv.shortcut_phases;
  if (conv.shortcut.defined()) args.shortcut_step = conv.shortcut.size(-1) / args.outputs;
  return args;
}

void check_operands(const Tensor& x, const Conv3d& conv, const kernels::Conv3dArgs& args,
                    at::ScalarType dtype) {
  TORCH_CHECK(dtype == x.scalar_type() || (dtype == at::kFloat && x.scalar_type() == at::kHalf),
              "[", kOp, "] results of ", dtype, " beside x of ", x.scalar_type());
  ops::check_values(kOp, "weight", conv.weight, conv.weight.sizes(), x);
  if (conv.bias.defined())
    ops::check_table(kOp, "bias", conv.bias, x.scalar_type(), {args.outputs}, x);
  const Tensor& map = conv.shortcut;
  if (!map.defined()) return;
  TORCH_CHECK(
      args.shortcut_step > 0 &&
          map.sizes() == at::IntArrayRef({args.y_frames() / args.frame_phases, args.y_height,
                                          args.y_width, args.shortcut_step * args.outputs}) &&
          map.is_contiguous(),
      "[", kOp, "] shortcut is ", map.sizes(), " beside x ", x.sizes());
  TORCH_CHECK(map.scalar_type() == dtype && map.device() == x.device(), "[", kOp, "] shortcut is ",
              map.scalar_type(), " on ", map.device(), ", expected ", dtype, " on ", x.device());
}

// What the shortcut has for the outputs of a phase.
Tensor shortcut_of(const Tensor& map, const kernels::Conv3dArgs& args, std::int64_t phase) {
  std::vector<std::int64_t> channels;
  for (std::int64_t i = 0; i < args.outputs; ++i) {
    channels.push_back((i * args.shortcut_phases + args.shortcut_first + phase) *
                       args.shortcut_step / args.shortcut_phases);
  }
  return map.index_select(3, at::tensor(channels, at::kLong).to(map.device()));
}

void pairs_by_reference(const Tensor& y, const Tensor& x, const Conv3d& conv,
                        const kernels::Conv3dArgs& args, const Tensor& bias) {
  const auto convolve = [&](std::int64_t map, std::int64_t of_weight) {
    const Tensor frames = x.narrow(0, map * args.frames, args.frames).to(at::kFloat);
    const Tensor weight = conv.weight[0].select(1, of_weight).to(at::kFloat).permute({0, 3, 1, 2});
    return at::conv2d(frames.permute({0, 3, 1, 2}), weight, {}, 1, {args.top, args.left});
  };
  const Tensor both = convolve(0, 0), differing = convolve(1, 1);
  const Tensor sums = at::stack({both + differing + convolve(2, 2),
                                 both - differing + convolve(3, kernels::kConv3dPairWeights - 1)},
                                1);
  Tensor made = sums.flatten(0, 1).permute({0, 2, 3, 1});
  if (bias.defined()) made = made + bias;
  made = made.to(x.scalar_type()).to(y.scalar_type());
  y.copy_(conv.shortcut.defined() ? made + conv.shortcut : made);
}

void by_reference(const Tensor& y, const Tensor& x, const Conv3d& conv,
                  const kernels::Conv3dArgs& args) {
  const std::int64_t side = args.side_phases, rows = args.top, columns = args.left;
  const Tensor bias = conv.bias.defined() ? conv.bias.to(at::kFloat) : Tensor();
  if (args.pairs) return pairs_by_reference(y, x, conv, args, bias);
  const Tensor all = y.view(
      {args.frames, args.frame_phases, args.y_height, side, args.y_width, side, args.outputs});
  for (std::int64_t phase = 0; phase < args.phases(); ++phase) {
    const std::int64_t frame = phase / (side * side), row = phase / side % side,
                       column = phase % side;
    const Tensor clip = x.narrow(3, frame * args.inputs, args.inputs).permute({3, 0, 1, 2});
    // From the phase's first pixel to its last.
    const Tensor seen = at::constant_pad_nd(
        clip.to(at::kFloat),
        {columns - column, columns + column + 1 - side, rows - row, rows + row + 1 - side, 0, 0});
    const Tensor weight = conv.weight[phase % (side * side)].to(at::kFloat);
    Tensor made = at::conv3d(seen.unsqueeze(0), weight.permute({0, 4, 1, 2, 3}), bias);
    made = made.squeeze(0).permute({1, 2, 3, 0}).to(x.scalar_type()).to(y.scalar_type());
    if (conv.shortcut.defined()) made = made + shortcut_of(conv.shortcut, args, phase);
    all.select(5, column).select(3, row).select(1, frame).copy_(made);
  }
}

void by_kernel(const Tensor& y, const Tensor& x, const Conv3d& conv, kernels::Conv3dArgs args) {
  args.x = x.const_data_ptr();
  args.weight = conv.weight.const_data_ptr();
  args.weight_stride = conv.weight.stride(1);
  if (conv.bias.defined()) args.bias = conv.bias.const_data_ptr();
  args.y = y.data_ptr();
  if (conv.shortcut.defined()) args.shortcut = conv.shortcut.const_data_ptr();
  args.dtype = ops::kernel_dtype(x);
  args.y_dtype = ops::kernel_dtype(y);
  Tensor workspace;
  if (const std::int64_t bytes = ops::conv3d_workspace(args, x.device()); bytes > 0) {
    workspace = at::empty({bytes / 4}, x.options().dtype(at::kFloat));
    args.workspace = workspace.data_ptr<float>();
  }
  ops::launch(args, x.device());
}

}  // namespace

bool has_conv3d_kernels(const at::TensorOptions& options, KernelPolicy policy) {
  const at::ScalarType dtype = c10::typeMetaToScalarType(options.dtype());
  return policy != KernelPolicy::reference && options.device().is_cuda() &&
         (dtype == at::kBFloat16 || dtype == at::kHalf) && ops::has_conv3d(options.device());
}

// Of tiles at least nine tenths must be filled, of pieces seven (96 inputs need two). Tiles of 96
// outputs are not measured for more than one beside another.
bool conv3d_kernel_fits(std::int64_t out, std::int64_t in, std::int64_t frame_phases) {
  constexpr std::int64_t kVector = 8;  // elements of 16 bytes
  const bool fits = fills(out, 256, 9) || fills(out, 192, 9) || (out <= 96 && fills(out, 96, 9));
  return fits && out <= kernels::kConv3dMostOutputs && out % kVector == 0 && in % kVector == 0 &&
         fills(in, kernels::kConv3dPiece, 7) &&
         (frame_phases == 1 || in % kernels::kConv3dPiece == 0);
}

Tensor conv3d_pair_weight(const Tensor& weight) {
  const Tensor wide = weight.to(at::kFloat);
  const auto tap = [&](std::int64_t i) { return wide.select(2, i); };
  const Tensor both = (tap(0) + tap(2)) / 2, middle = tap(1) / 2;
  return at::stack({both + middle, both - middle, tap(0), tap(1), tap(2)}, 2);
}

Tensor conv3d(const Tensor& x, const Conv3d& conv) {
  const kernels::Conv3dArgs args = sizes_of(x, conv);
  const at::ScalarType dtype = conv.dtype.value_or(x.scalar_type());
  check_operands(x, conv, args, dtype);
  const Tensor y = at::empty({args.y_frames(), args.y_height * args.side_phases,
                              args.y_width * args.side_phases, args.outputs},
                             x.options().dtype(dtype));
  if (has_conv3d_kernels(x.options(), KernelPolicy::automatic)) {
    by_kernel(y, x, conv, args);
  } else {
    by_reference(y, x, conv, args);
  }
  return y;
}

}  // namespace diptych
