#include "lib/ops/rms_norm_rope.h"

#include "lib/ops/checks.h"
#include "lib/ops/kernel_call.h"
#include "lib/ops/launch_label.h"

namespace diptych {
namespace {

constexpr const char* kOp = "rms_norm_rope_";

void check_tables(const RmsNormRope& args, std::int64_t width) {
  if (!args.cos.defined()) {
    TORCH_CHECK(!args.sin.defined(), "[", kOp, "] sines without cosines");
    return;
  }
  TORCH_CHECK(args.cos.dim() == 2 && args.cos.size(0) > 0 && args.cos.size(1) > 0 &&
                  width % (2 * args.cos.size(1)) == 0,
              "[", kOp, "] cos is ", args.cos.sizes(), " for rows of ", width);
  ops::check_table(kOp, "cos", args.cos, at::kFloat, args.cos.sizes(), args.x);
  ops::check_table(kOp, "sin", args.sin, at::kFloat, args.cos.sizes(), args.x);
}

// -> the width of a part
std::int64_t check_arguments(const RmsNormRope& args) {
  TORCH_CHECK(args.x.defined() && args.x.dim() == 2, "[", kOp, "] x is not [rows, width]");
  ops::check_values(kOp, "x", args.x, args.x.sizes());
  TORCH_CHECK(args.weights.size() == 1 || args.weights.size() == 2, "[", kOp, "] ",
              args.weights.size(), " weights, expected 1 or 2");
  const std::int64_t width = args.weights.front().numel(),
                     parts = static_cast<std::int64_t>(args.weights.size());
  for (const Tensor& weight : args.weights)
    ops::check_values(kOp, "weight", weight, {width}, args.x);
  TORCH_CHECK(width > 0 && parts * width <= args.x.size(1), "[", kOp, "] ", parts, " parts of ",
              width, " in rows of ", args.x.size(1));
  TORCH_CHECK(args.eps >= 0, "[", kOp, "] eps is ", args.eps);
  check_tables(args, width);
  return width;
}

// Of one part, in place.
void reference(const Tensor& part, const Tensor& weight, const RmsNormRope& args) {
  const Tensor wide = part.to(at::kFloat);
  const Tensor scale = wide.square().mean(-1, /*keepdim=*/true).add_(args.eps).rsqrt_();
  const Tensor normed = (wide * scale * weight.to(at::kFloat)).to(part.scalar_type());
  if (!args.cos.defined()) {
    part.copy_(normed);
    return;
  }
  const std::int64_t positions = args.cos.size(0), half = args.cos.size(1);
  const std::int64_t repeats = (part.size(0) + positions - 1) / positions;
  const auto of_rows = [&](const Tensor& table) {  // [rows, 1, half]
    return table.repeat({repeats, 1}).narrow(0, 0, part.size(0)).unsqueeze(1);
  };
  const Tensor cos = of_rows(args.cos), sin = of_rows(args.sin);
  const Tensor pairs =
      normed.to(at::kFloat).view({part.size(0), part.size(1) / (2 * half), half, 2});
  const Tensor a = pairs.select(3, 0), b = pairs.select(3, 1);
  part.copy_(at::stack({a * cos - b * sin, a * sin + b * cos}, 3).view(part.sizes()));
}

kernels::RmsNormRopeArgs kernel_args(const RmsNormRope& from, std::int64_t width) {
  kernels::RmsNormRopeArgs args;
  args.x = from.x.data_ptr();
  args.x_stride = from.x.stride(0);
  args.parts = static_cast<int>(from.weights.size());
  for (std::size_t i = 0; i < from.weights.size(); ++i)
    args.weights[i] = from.weights[i].data_ptr();
  args.rows = from.x.size(0);
  args.width = width;
  args.eps = static_cast<float>(from.eps);
  args.dtype = ops::kernel_dtype(from.x);
  if (!from.cos.defined()) return args;
  args.cos = from.cos.const_data_ptr<float>();
  args.sin = from.sin.const_data_ptr<float>();
  args.positions = from.cos.size(0);
  args.head_dim = 2 * from.cos.size(1);
  return args;
}

// Cosine and sine of one axis, float32 [positions, channels / 2].
std::pair<Tensor, Tensor> axis_table(std::int64_t positions, std::int64_t channels, double theta) {
  const Tensor exponents = at::arange(0, channels, 2, at::kDouble).div_(channels);
  const Tensor frequencies = at::pow(theta, exponents).reciprocal_();
  const Tensor angles = at::outer(at::arange(positions, at::kDouble), frequencies);
  return {angles.cos().to(at::kFloat), angles.sin().to(at::kFloat)};
}

}  // namespace

void rms_norm_rope_(const RmsNormRope& args, const Kernels& kernels) {
  const std::int64_t width = check_arguments(args);
  const LaunchLabel label(args.cos.defined() ? launch_names::kRope : launch_names::kNorm);
  if (ops::takes_kernel(kOp, args.x, kernels))
    return ops::launch(kernel_args(args, width), args.x.device());
  for (std::size_t i = 0; i < args.weights.size(); ++i) {
    const Tensor part = args.x.narrow(1, static_cast<std::int64_t>(i) * width, width);
    reference(part, args.weights[i], args);
  }
}

std::pair<Tensor, Tensor> axial_rope_table(const AxialAngles& a, double theta) {
  TORCH_CHECK(a.frames > 0 && a.height > 0 && a.width > 0, "[axial_rope_table] ", a.frames, " x ",
              a.height, " x ", a.width, " positions");
  TORCH_CHECK(a.head_dim >= 2 && a.head_dim % 2 == 0, "[axial_rope_table] head_dim is ", a.head_dim,
              ", expected an even number from 2");
  const std::int64_t side = 2 * (a.head_dim / 6);
  const auto [cos_t, sin_t] = axis_table(a.frames, a.head_dim - 2 * side, theta);
  const auto [cos_h, sin_h] = axis_table(a.height, side, theta);
  const auto [cos_w, sin_w] = axis_table(a.width, side, theta);
  const auto join = [&](const Tensor& t, const Tensor& h, const Tensor& w) {
    const auto spread = [&](const Tensor& axis) {
      return axis.expand({a.frames, a.height, a.width, axis.size(-1)});
    };
    return at::cat({spread(t.unsqueeze(1).unsqueeze(1)), spread(h.unsqueeze(1)), spread(w)}, -1)
        .view({a.frames * a.height * a.width, a.head_dim / 2});
  };
  return {join(cos_t, cos_h, cos_w), join(sin_t, sin_h, sin_w)};
}

}  // namespace diptych
