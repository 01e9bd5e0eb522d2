#include "lib/ops/conv3d.h"

#include <algorithm>

#include "lib/ops/checks.h"
#include "lib/ops/kernel_call.h"

namespace diptych {
namespace {

constexpr const char* kOp = "conv3d";

// At least nine tenths of the last tile's columns, or of the last piece's, are there.
bool fills(std::int64_t count, std::int64_t part) {
  return 10 * count >= 9 * ((count + part - 1) / part) * part;
}

}  // namespace

bool has_conv3d_kernel(const at::TensorOptions& options, std::int64_t out, std::int64_t in,
                       KernelPolicy policy) {
  constexpr std::int64_t kVector = 8;  // elements of 16 bytes
  const at::ScalarType dtype = c10::typeMetaToScalarType(options.dtype());
  if (!options.device().is_cuda() || policy == KernelPolicy::reference ||
      (dtype != at::kBFloat16 && dtype != at::kHalf)) {
    return false;
  }
  return out % kVector == 0 && in % kVector == 0 && (fills(out, 256) || fills(out, 192)) &&
         fills(in, 64) && ops::has_conv3d(options.device());
}

Tensor conv3d(const Tensor& x, const Conv3d& conv) {
  const Tensor& weight = conv.weight;
  const std::int64_t phases = conv.side_phases * conv.side_phases;
  TORCH_CHECK(x.dim() == 4 && x.is_contiguous(), "[", kOp, "] x is ", x.sizes(), " with strides ",
              x.strides(), ", expected a contiguous [n, h, w, c]");
  TORCH_CHECK(weight.dim() == 6 && weight.size(0) == phases &&
                  weight.size(5) * conv.frame_phases == x.size(3) &&
                  weight.select(0, 0).select(0, 0).is_contiguous(),
              "[", kOp, "] weight is ", weight.sizes(), " with strides ", weight.strides(),
              ", expected [", phases, ", out, t, rows, columns, in] for ", x.size(3), " channels");
  ops::check_values(kOp, "weight", weight, weight.sizes(), x);
  kernels::Conv3dArgs args;
  args.outputs = weight.size(1);
  args.frame_taps = weight.size(2);
  args.row_taps = weight.size(3);
  args.column_taps = weight.size(4);
  args.inputs = weight.size(5);
  args.frames = x.size(0) - args.frame_taps + 1;
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
  if (conv.bias.defined()) {
    ops::check_table(kOp, "bias", conv.bias, x.scalar_type(), {args.outputs}, x);
    args.bias = conv.bias.const_data_ptr();
  }
  if (conv.shortcut.defined()) {
    const Tensor& map = conv.shortcut;
    const std::int64_t step = map.dim() == 4 ? map.size(3) / args.outputs : 0;
    TORCH_CHECK(step > 0 &&
                    map.sizes() == at::IntArrayRef({args.frames, args.y_height, args.y_width,
                                                    step * args.outputs}) &&
                    map.is_contiguous(),
                "[", kOp, "] shortcut is ", map.sizes(), " beside a map of ", x.sizes());
    ops::check_values(kOp, "shortcut", map, map.sizes(), x);
    args.shortcut = map.const_data_ptr();
    args.shortcut_step = step;
    args.shortcut_first = conv.shortcut_first;
    args.shortcut_phases = conv.shortcut_phases;
  }
  const Tensor y = at::empty({args.frames * args.frame_phases, args.y_height * args.side_phases,
                              args.y_width * args.side_phases, args.outputs},
                             x.options());
  args.x = x.const_data_ptr();
  args.weight = weight.const_data_ptr();
  args.weight_stride = weight.stride(1);
  args.y = y.data_ptr();
  args.dtype = ops::kernel_dtype(x);
  Tensor workspace;
  if (const std::int64_t bytes = ops::conv3d_workspace(args, x.device()); bytes > 0) {
    workspace = at::empty({bytes / 4}, x.options().dtype(at::kFloat));
    args.workspace = workspace.data_ptr<float>();
  }
  ops::launch(args, x.device());
  return y;
}

}  // namespace diptych
