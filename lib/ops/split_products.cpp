#include "lib/ops/split_products.h"

#include <algorithm>
#include <cmath>

namespace diptych {
namespace {

struct Split {
  Tensor high, low{};  // low: undefined where high is all
};

Split split(const Tensor& x, at::ScalarType part) {
  if (x.scalar_type() == part) return {x};
  const Tensor high = x.to(part);
  Tensor low = at::empty_like(high);
  at::sub_out(low, x, high);  // in float32, in one pass
  return {high, low};
}

template <class View>
Split view_of(const Split& x, const View& view) {
  return {view(x.high), x.low.defined() ? view(x.low) : x.low};
}

// sum = beta * sum + scale * left right, batches of matrices.
void add_product(Tensor sum, const Tensor& left, const Tensor& right, double beta, double scale) {
  if (sum.is_cpu()) {
    at::baddbmm_out(sum, sum, left.to(at::kFloat), right.to(at::kFloat), beta, scale);
  } else {
    at::baddbmm_out(sum, sum, left, right, at::kFloat, beta, scale);
  }
}

// product = scale * a b. Left out is what the two lower parts make.
void multiply(const Tensor& product, const Split& a, const Split& b, double scale) {
  add_product(product, a.high, b.high, 0, scale);
  if (a.low.defined()) add_product(product, a.low, b.high, 1, scale);
  if (b.low.defined()) add_product(product, a.high, b.low, 1, scale);
}

}  // namespace

Tensor linear_in_parts(const Tensor& x, const Tensor& weight, const Tensor& bias,
                       at::ScalarType part) {
  const std::int64_t out = weight.size(0), in = weight.size(1);
  const Split by = split(weight.t().unsqueeze(0), part);
  const Tensor y = at::empty({x.size(0), x.size(1), x.size(2), out}, x.options());
  for (std::int64_t i = 0; i < x.size(0); ++i) {
    const Split read = split(x.narrow(0, i, 1).view({1, -1, in}), part);
    multiply(y.narrow(0, i, 1).view({1, -1, out}), read, by, 1);
  }
  return y.add_(bias);
}

Tensor attend_in_parts(const Tensor& qkv, at::ScalarType part, std::int64_t most_scores) {
  const std::int64_t n = qkv.size(0), rows = qkv.size(1), channels = qkv.size(2) / 3;
  const double scale = 1 / std::sqrt(static_cast<double>(channels));
  const Split all = split(qkv, part);
  const auto third = [&](std::int64_t i) {
    return view_of(all, [&](const Tensor& t) { return t.narrow(2, i * channels, channels); });
  };
  const Split q = third(0), v = third(2);
  const Split keys = view_of(third(1), [](const Tensor& t) { return t.transpose(1, 2); });
  const at::TensorOptions options = qkv.options().dtype(at::kFloat);
  const Tensor attended = at::empty({n, rows, channels}, options);
  const std::int64_t at_once = std::max<std::int64_t>(most_scores / (n * rows), 1);
  for (std::int64_t first = 0; first < rows; first += at_once) {
    const std::int64_t count = std::min(at_once, rows - first);
    const auto asked = [&](const Tensor& t) { return t.narrow(1, first, count); };
    Tensor shares = at::empty({n, count, rows}, options);
    multiply(shares, view_of(q, asked), keys, scale);
    shares = at::softmax(shares, -1);
    const Split read = v.low.defined() ? split(shares, part) : Split{shares.to(part)};
    multiply(asked(attended), read, v, 1);
  }
  return attended;
}

}  // namespace diptych
