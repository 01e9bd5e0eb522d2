#include "lib/ops/group_norm.h"

#include "lib/ops/checks.h"
#include "lib/ops/kernel_call.h"
#include "lib/ops/launch_label.h"
#include "lib/tensor/tf32.h"

namespace diptych {
namespace {

void check_maps(const char* op, const char* name, const Tensor& x) {
  TORCH_CHECK(x.defined() && x.dim() == 4 && x.scalar_type() == at::kFloat && x.size(1) >= 1, "[",
              op, "] ", name, " is ", x.defined() ? x.sizes() : at::IntArrayRef{},
              ", expected float32 [n, channels, h, w]");
  const std::int64_t channels = x.size(1), width = x.size(3);
  const bool packed = (channels == 1 || x.stride(1) == 1) &&
                      (width == 1 || x.stride(3) == channels) &&
                      (x.size(2) == 1 || x.stride(2) == width * channels);
  TORCH_CHECK(packed, "[", op, "] ", name, " has strides ", x.strides(),
              ", expected rows in channels_last");
}

// [n, 2, channels] -> factors and offsets [n, channels, 1, 1].
std::pair<Tensor, Tensor> columns_of(const Tensor& table) {
  const auto column = [&](std::int64_t at) {
    return table.select(1, at).unsqueeze(-1).unsqueeze(-1);
  };
  return {column(0), column(1)};
}

Tensor table_reference(const Tensor& x, const GroupNorm& norm) {
  const std::int64_t width = x.size(1) / norm.groups * x.size(2) * x.size(3);
  const auto [variance, mean] = at::var_mean(x.reshape({x.size(0), norm.groups, width}), {2},
                                             /*correction=*/0, /*keepdim=*/true);
  const Tensor inverse = (variance + norm.eps).rsqrt();  // [n, groups, 1]
  const Tensor factor = inverse * norm.weight.view({1, norm.groups, -1});
  const Tensor offset = norm.bias.view({1, norm.groups, -1}) - mean * factor;
  return at::stack({factor, offset}, 1).view({x.size(0), 2, x.size(1)});
}

}  // namespace

Tensor group_norm_table(const Tensor& x, const GroupNorm& norm, KernelPolicy policy) {
  constexpr const char* kOp = "group_norm_table";
  check_maps(kOp, "x", x);
  const std::int64_t n = x.size(0), channels = x.size(1);
  TORCH_CHECK(norm.groups >= 1 && channels % norm.groups == 0, "[", kOp, "] ", norm.groups,
              " groups of ", channels, " channels");
  ops::check_table(kOp, "weight", norm.weight, at::kFloat, {channels}, x);
  ops::check_table(kOp, "bias", norm.bias, at::kFloat, {channels}, x);
  const LaunchLabel label(launch_names::kNorm);
  if (!ops::takes_kernel(kOp, x, policy)) return table_reference(x, norm);
  kernels::GroupNormTableArgs args;
  args.samples = n;
  args.pixels = x.size(2) * x.size(3);
  args.channels = channels;
  args.groups = norm.groups;
  args.eps = static_cast<float>(norm.eps);
  args.sample_stride = ops::stride_of(x, 0);
  const Tensor table = at::empty({n, 2, channels}, x.options());
  const Tensor sums =
      at::empty({n, kernels::group_norm_chunks(args.pixels, channels), channels, 2}, x.options());
  args.x = x.const_data_ptr<float>();
  args.weight = norm.weight.const_data_ptr<float>();
  args.bias = norm.bias.const_data_ptr<float>();
  args.sums = sums.data_ptr<float>();
  args.table = table.data_ptr<float>();
  ops::launch(args, x.device());
  return table;
}

void group_norm_silu_out(const Tensor& y, const Tensor& x, const Tensor& table,
                         const GroupNormSilu& options, KernelPolicy policy) {
  constexpr const char* kOp = "group_norm_silu";
  check_maps(kOp, "x", x);
  check_maps(kOp, "y", y);
  TORCH_CHECK(y.sizes() == x.sizes(), "[", kOp, "] y is ", y.sizes(), ", expected ", x.sizes());
  ops::check_table(kOp, "table", table, at::kFloat, {x.size(0), 2, x.size(1)}, x);
  const LaunchLabel label(launch_names::kNorm);
  if (!ops::takes_kernel(kOp, x, policy)) {
    const auto [factor, offset] = columns_of(table);
    Tensor out = y;
    at::addcmul_out(out, offset, x, factor);
    if (options.silu) at::silu_(out);
    if (options.round_to_tf32) out.copy_(round_to_tf32(out));
    return;
  }
  kernels::GroupNormSiluArgs args;
  args.x = x.const_data_ptr<float>();
  args.table = table.const_data_ptr<float>();
  args.y = y.data_ptr<float>();
  args.samples = x.size(0);
  args.pixels = x.size(2) * x.size(3);
  args.channels = x.size(1);
  args.x_sample_stride = ops::stride_of(x, 0);
  args.y_sample_stride = ops::stride_of(y, 0);
  args.silu = options.silu;
  args.round_to_tf32 = options.round_to_tf32;
  ops::launch(args, x.device());
}

}  // namespace diptych
