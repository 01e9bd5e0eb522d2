#include "tests/ops/group_norm_cases.h"

#include <doctest/doctest.h>
#include <fmt/format.h>

#include "kernels/group_norm_silu/group_norm_silu.h"

namespace diptych::testing {
namespace {

constexpr auto kLayout = at::MemoryFormat::ChannelsLast;
constexpr double kEps = 1e-6;

struct Maps {
  std::int64_t n, channels, groups, height, width;
  double mean = 0;  // of the values, whose deviation is 1
  std::string name() const {
    return fmt::format("[{}, {}, {}, {}] in {} groups, mean {}", n, channels, height, width, groups,
                       mean);
  }
};
// The released widths; several runs of pixels; sizes that allow no vectors; groups narrower and
// wider than a vector; more channels than a block has threads for; one pixel.
constexpr Maps kMaps[] = {{1, 128, 32, 7, 9},    {1, 256, 32, 33, 65},  {1, 512, 32, 16, 16},
                          {1, 128, 32, 180, 61}, {2, 32, 32, 5, 3},     {3, 6, 3, 1, 1},
                          {2, 10, 5, 37, 3},     {1, 20, 5, 4, 6},      {1, 1536, 32, 3, 5},
                          {1, 64, 2, 130, 4},    {2, 128, 32, 9, 8, 50}};

Tensor table_of(const Tensor& x, const GroupNorm& norm) {
  const Tensor table = at::empty({x.size(0), 2, x.size(1)});
  kernels::GroupNormTableArgs args;
  args.x = x.const_data_ptr<float>();
  args.weight = norm.weight.const_data_ptr<float>();
  args.bias = norm.bias.const_data_ptr<float>();
  args.table = table.data_ptr<float>();
  args.samples = x.size(0);
  args.pixels = x.size(2) * x.size(3);
  args.channels = x.size(1);
  args.groups = norm.groups;
  args.sample_stride = args.pixels * args.channels;
  args.eps = static_cast<float>(norm.eps);
  kernels::group_norm_table_ref(args);
  return table;
}

Tensor expected_of(const Tensor& x, const Tensor& table, const GroupNormSilu& options) {
  const Tensor y = at::empty(x.sizes(), x.options(), kLayout);
  kernels::GroupNormSiluArgs args;
  args.x = x.const_data_ptr<float>();
  args.table = table.const_data_ptr<float>();
  args.y = y.data_ptr<float>();
  args.samples = x.size(0);
  args.pixels = x.size(2) * x.size(3);
  args.channels = x.size(1);
  args.x_sample_stride = args.y_sample_stride = args.pixels * args.channels;
  args.silu = options.silu;
  args.round_to_tf32 = options.round_to_tf32;
  kernels::group_norm_silu_ref(args);
  return y;
}

std::int64_t count(const Tensor& mask) {
  return mask.sum().item<std::int64_t>();
}

// The factor times x and the offset nearly cancel where the mean is large: errors are relative to
// both.
void check_values(const Tensor& y, const Tensor& x, const Tensor& table,
                  const GroupNormSilu& options) {
  const Tensor expected = expected_of(x, table, options);
  const Tensor factor = table.select(1, 0).unsqueeze(-1).unsqueeze(-1);
  const Tensor offset = table.select(1, 1).unsqueeze(-1).unsqueeze(-1);
  const Tensor terms = (x * factor).abs() + offset.abs();
  const double rounding = options.round_to_tf32 ? 0x1p-10 : 1e-6;
  const Tensor apart = (y.cpu() - expected).abs();
  CHECK(count(apart > terms * 1e-6 + expected.abs() * rounding) == 0);
  if (!options.round_to_tf32) return;
  CHECK(count(y.cpu().contiguous().view(at::kInt).bitwise_and(0x1fff) != 0) == 0);
  CHECK(count(apart > terms * 1e-6) <= y.numel() / 500 + 2);  // values near the middle of two
}

// Some rows of the maps into rows of others, and in place.
void check_rows(const Tensor& x, const Tensor& table, KernelPolicy policy) {
  if (x.size(2) < 3) return;
  const auto inner = [](const Tensor& t) { return t.narrow(2, 1, t.size(2) - 2); };
  Tensor whole = at::empty(x.sizes(), x.options(), kLayout);
  group_norm_silu_out(whole, x, table, {}, policy);
  const Tensor slab = at::full(x.sizes(), -77, x.options()).contiguous(kLayout);
  group_norm_silu_out(inner(slab), inner(x), table, {}, policy);
  CHECK(inner(slab).equal(inner(whole)));
  inner(slab).fill_(-77);
  CHECK(count(slab != -77) == 0);
  const Tensor own = x.clone(kLayout);
  group_norm_silu_out(own, own, table, {}, policy);
  CHECK(own.equal(whole));
}

}  // namespace

void check_group_norm(at::Device device, KernelPolicy policy) {
  at::Generator generator = at::detail::createCPUGenerator(31);
  for (const Maps& maps : kMaps) {
    const std::string what = maps.name();
    CAPTURE(what);
    const Tensor x =
        (at::randn({maps.n, maps.channels, maps.height, maps.width}, generator) + maps.mean)
            .contiguous(kLayout);
    const Tensor weight = at::randn({maps.channels}, generator);
    const Tensor bias = at::randn({maps.channels}, generator);
    const Tensor expected = table_of(x, {weight, bias, maps.groups, kEps});
    const Tensor on_device = x.to(device);
    const Tensor table = group_norm_table(
        on_device, {weight.to(device), bias.to(device), maps.groups, kEps}, policy);
    REQUIRE((table.sizes() == expected.sizes()));
    const double bound = 4e-6 * (1 + maps.mean);
    CHECK(count((table.cpu() - expected).abs() > expected.abs() * bound + 4e-6) == 0);
    for (const GroupNormSilu options : {GroupNormSilu{}, {false, false}, {true, true}}) {
      const Tensor y = at::empty(x.sizes(), on_device.options(), kLayout);
      group_norm_silu_out(y, on_device, expected.to(device), options, policy);
      check_values(y, x, expected, options);
    }
    check_rows(on_device, table, policy);
    const Tensor again = group_norm_table(
        on_device, {weight.to(device), bias.to(device), maps.groups, kEps}, policy);
    CHECK(again.equal(table));
  }
}

void check_group_norm_arguments() {
  const Tensor x = at::ones({1, 4, 3, 3}).contiguous(kLayout), one = at::ones({4});
  const GroupNorm norm{one, one, 2, kEps};
  const auto policy = KernelPolicy::reference;
  const Tensor table = group_norm_table(x, norm, policy);
  CHECK_THROWS_AS(group_norm_table(x.contiguous(), norm, policy), c10::Error);
  CHECK_THROWS_AS(group_norm_table(x.to(at::kHalf), norm, policy), c10::Error);
  CHECK_THROWS_AS(group_norm_table(x, {one, one, 3, kEps}, policy), c10::Error);
  CHECK_THROWS_AS(group_norm_table(x, {at::ones({5}), one, 2, kEps}, policy), c10::Error);
  const auto apply = [&](const Tensor& y, const Tensor& with) {
    group_norm_silu_out(y, x, with, {}, policy);
  };
  CHECK_THROWS_AS(apply(at::empty({1, 4, 3, 3}), table), c10::Error);
  CHECK_THROWS_AS(apply(at::empty({1, 4, 3, 2}, x.options(), kLayout), table), c10::Error);
  CHECK_THROWS_AS(apply(x, table.select(1, 0)), c10::Error);
}

}  // namespace diptych::testing
