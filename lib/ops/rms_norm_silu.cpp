#include "lib/ops/rms_norm_silu.h"

#include <algorithm>
#include <array>
#include <vector>

#include <ATen/Parallel.h>
#include <c10/core/InferenceMode.h>

#include "lib/ops/checks.h"
#include "lib/ops/kernel_call.h"
#include "lib/ops/launch_label.h"

namespace diptych {
namespace {

constexpr const char* kOp = "rms_norm_silu";

// to = silu(from), [h, w, c] contiguous. On the CPU in pieces of a row: libtorch rounds the last
// elements of what it is given, or of a thread's part of that, in another way than the others, and
// the bits of a row must not depend on the other rows. A piece is too small for several threads.
void silu(const Tensor& from, Tensor to) {
  if (!from.is_cpu()) {
    at::silu_out(to, from);
    return;
  }
  constexpr std::int64_t kPiece = at::internal::GRAIN_SIZE / 2;
  const std::int64_t rows = from.size(0), width = from.size(1) * from.size(2);
  const Tensor in = from.view({rows, width}), out = to.view({rows, width});
  const bool inference = c10::InferenceMode::is_enabled();
  const auto of_rows = [&](std::int64_t begin, std::int64_t end) {
    const c10::InferenceMode mode(inference);  // each thread has its own
    for (std::int64_t row = begin; row < end; ++row) {
      for (std::int64_t first = 0; first < width; first += kPiece) {
        const std::int64_t count = std::min(kPiece, width - first);
        Tensor piece = out[row].narrow(0, first, count);
        at::silu_out(piece, in[row].narrow(0, first, count));
      }
    }
  };
  at::parallel_for(0, rows, std::max<std::int64_t>(1, kPiece / width), of_rows);
}

// x + parts of one frame, into `sum` where that is defined.
Tensor total_of(const Tensor& x, const std::vector<Tensor>& parts, Tensor sum) {
  Tensor total = x;
  for (const Tensor& part : parts) {
    if (!total.defined()) {
      total = part;
    } else if (sum.defined()) {
      at::add_out(sum, total, part);
      total = sum;
    } else {
      total = at::add(total, part);
    }
  }
  if (sum.defined() && !total.is_same(sum)) sum.copy_(total);
  return total;
}

// Operation by operation, frame by frame, so that between two of them one frame is held and not the
// map.
void by_reference(const Tensor& y, const Tensor& sum, const MapSum& of, const RmsNormSilu& norm,
                  KernelPolicy policy) {
  const std::int64_t frames = (of.x.defined() ? of.x : of.parts[0]).size(0);
  for (std::int64_t i = 0; i < frames; ++i) {
    const auto frame_of = [i](const Tensor& map) { return map.defined() ? map.select(0, i) : map; };
    std::vector<Tensor> parts;
    for (const Tensor& part : of.parts) parts.push_back(frame_of(part));
    const Tensor total = total_of(frame_of(of.x), parts, frame_of(sum));
    if (!y.defined()) continue;
    Tensor frame = y.select(0, i);
    if (!norm.weight.defined()) {
      frame.copy_(total);
      continue;
    }
    const Tensor rows = total.to(norm.weight.scalar_type()).view({-1, y.size(3)});
    const Tensor normed = rms_norm(rows, norm.weight, norm.eps, policy).view(frame.sizes());
    if (frame.scalar_type() == normed.scalar_type()) {
      silu(normed, frame);
    } else {
      silu(normed, normed);
      frame.copy_(normed);
    }
  }
}

void check_map(const char* name, const Tensor& map, const Tensor& like) {
  TORCH_CHECK(map.dim() == 4 && map.sizes() == like.sizes() && map.device() == like.device(), "[",
              kOp, "] ", name, " is ", map.sizes(), " on ", map.device().str(), ", expected ",
              like.sizes(), " on ", like.device().str());
  TORCH_CHECK(map.is_contiguous(), "[", kOp, "] ", name, " has strides ", map.strides(),
              ", expected a contiguous map");
}

kernels::RmsNormSiluArgs args_of(const Tensor& like, const RmsNormSilu& norm, at::ScalarType maps,
                                 at::ScalarType products) {
  kernels::RmsNormSiluArgs args;
  if (norm.weight.defined()) args.weight = norm.weight.const_data_ptr();
  args.width = like.size(3);
  args.frame_rows = std::max<std::int64_t>(1, like.size(1) * like.size(2));
  args.rows = like.size(0) * like.size(1) * like.size(2);
  args.eps = static_cast<float>(norm.eps);
  args.dtype = ops::kernel_dtype(maps);
  args.part_dtype = ops::kernel_dtype(products);
  return args;
}

void check_frames(const char* name, const Tensor& map, at::IntArrayRef sizes) {
  TORCH_CHECK(map.sizes() == sizes && (map.size(0) == 0 || map.select(0, 0).is_contiguous()), "[",
              kOp, "] ", name, " is ", map.sizes(), " with strides ", map.strides(), ", expected ",
              sizes, " with contiguous frames");
}

}  // namespace

void rms_norm_silu_out(const Tensor& y, const Tensor& sum, const MapSum& of,
                       const RmsNormSilu& norm, KernelPolicy policy) {
  const std::int64_t count = std::ssize(of.parts);
  TORCH_CHECK((of.x.defined() || count > 0) && count <= kernels::kNormParts, "[", kOp, "] ", count,
              " parts", of.x.defined() ? "" : " and no x");
  const Tensor& like = of.x.defined() ? of.x : of.parts[0];
  if (of.x.defined()) check_map("x", of.x, like);
  for (const Tensor& part : of.parts) {
    check_map("a part", part, like);
    TORCH_CHECK(part.scalar_type() == of.parts[0].scalar_type(), "[", kOp, "] parts are ",
                of.parts[0].scalar_type(), " and ", part.scalar_type());
  }
  if (sum.defined()) check_map("sum", sum, like);
  if (y.defined()) check_frames("y", y, like.sizes());
  const at::ScalarType maps = of.x.defined()          ? of.x.scalar_type()
                              : norm.weight.defined() ? norm.weight.scalar_type()
                              : sum.defined()         ? sum.scalar_type()
                                                      : like.scalar_type();
  const at::ScalarType products = count > 0     ? of.parts[0].scalar_type()
                                  : y.defined() ? y.scalar_type()
                                                : maps;
  TORCH_CHECK(products == maps || (maps == at::kFloat && products == at::kHalf), "[", kOp,
              "] parts are ", products, " beside maps of ", maps);
  if (y.defined()) {
    TORCH_CHECK(y.scalar_type() == products && y.device() == like.device(), "[", kOp, "] y is ",
                y.scalar_type(), " on ", y.device().str(), ", expected ", products, " on ",
                like.device().str());
  }
  if (norm.weight.defined())
    ops::check_table(kOp, "weight", norm.weight, maps, {like.size(3)}, like);
  TORCH_CHECK(!sum.defined() || sum.scalar_type() == maps, "[", kOp, "] sum is ", sum.scalar_type(),
              " beside maps of ", maps);
  const LaunchLabel label(launch_names::kNorm);
  if (!ops::takes_kernel(kOp, like, policy)) return by_reference(y, sum, of, norm, policy);
  kernels::RmsNormSiluArgs args = args_of(like, norm, maps, products);
  if (of.x.defined()) args.x = of.x.const_data_ptr();
  for (std::size_t i = 0; i < of.parts.size(); ++i) args.parts[i] = of.parts[i].const_data_ptr();
  if (sum.defined()) args.sum = sum.data_ptr();
  args.part_count = static_cast<int>(count);
  if (y.defined()) {
    args.y = y.data_ptr();
    args.y_frame_stride = y.size(0) > 1 ? y.stride(0) : args.frame_rows * args.width;
  }
  ops::launch(args, like.device());
}

bool makes_frame_pairs(std::int64_t channels) {
  return channels <= kernels::kMostPairedWidth;
}

void rms_norm_silu_pairs_out(const Tensor& y, const Tensor& before, const Tensor& x,
                             const RmsNormSilu& norm, KernelPolicy policy) {
  TORCH_CHECK(x.dim() == 4 && x.is_contiguous() && x.size(0) > 0 && x.size(0) % 2 == 0, "[", kOp,
              "] x is ", x.sizes(), ", expected contiguous pairs of frames");
  const std::int64_t frames = x.size(0), h = x.size(1), w = x.size(2), c = x.size(3);
  check_frames("y", y, {2 * frames, h, w, c});
  check_frames("before", before, {2, h, w, c});
  ops::check_table(kOp, "weight", norm.weight, norm.weight.scalar_type(), {c}, x);
  const at::ScalarType maps = norm.weight.scalar_type(), products = y.scalar_type();
  TORCH_CHECK((x.scalar_type() == maps || x.scalar_type() == products) &&
                  before.scalar_type() == products && y.device() == x.device() &&
                  before.device() == x.device() &&
                  (products == maps || (maps == at::kFloat && products == at::kHalf)),
              "[", kOp, "] x is ", x.scalar_type(), " on ", x.device().str(), ", before ",
              before.scalar_type(), " on ", before.device().str(), ", y ", products, " on ",
              y.device().str(), " and weight ", maps);
  if (!ops::takes_kernel(kOp, x, policy)) {
    const Tensor made = at::empty(x.sizes(), y.options());
    const std::array parts = {x};
    by_reference(made, {}, {{}, parts}, norm, policy);
    const Tensor all = at::cat({before, made}).to(at::kFloat);
    const auto d = [&](std::int64_t i) { return all.slice(0, i, i + frames - 1, 2); };
    y.copy_(at::cat({d(1) + d(2), d(2) - d(1), d(0) - d(2), d(3) - d(1)}));
    before.copy_(made.narrow(0, frames - 2, 2));
    return;
  }
  const LaunchLabel label(launch_names::kNorm);
  kernels::RmsNormSiluArgs args = args_of(x, norm, maps, products);
  if (x.scalar_type() == maps) {
    args.x = x.const_data_ptr();
  } else {
    args.parts[0] = x.const_data_ptr();
    args.part_count = 1;
  }
  args.y = y.data_ptr();
  args.y_frame_stride = y.stride(0);
  args.before = before.data_ptr();
  args.before_frame_stride = before.stride(0);
  ops::launch(args, x.device());
}

}  // namespace diptych
