#include "tests/ops/rms_norm_silu_cases.h"

#include <vector>

#include <doctest/doctest.h>
#include <fmt/format.h>

#include "kernels/rms_norm_silu/rms_norm_silu.h"
#include "tests/kernels/kernel_dtype.h"

namespace diptych::testing {
namespace {

constexpr double kEps = 1e-5;

struct Types {
  at::ScalarType maps, parts;
};
struct Case {
  Types types;
  std::int64_t width;
  bool has_x;
  int parts;
  bool stores_sum, normed;
  std::int64_t frames = 2, height = 3, columns = 5;
  std::string name() const {
    return fmt::format("{} and {}, {} channels of {} frames, {}{} parts{}{}",
                       c10::toString(types.maps), c10::toString(types.parts), width, frames,
                       has_x ? "x and " : "", parts, stores_sum ? ", stored" : "",
                       normed ? "" : ", plain");
  }
  std::vector<std::int64_t> sizes() const { return {frames, height, columns, width}; }
};

struct Operands {
  Tensor x;
  std::vector<Tensor> parts;
  Tensor weight;
  MapSum sum() const { return {x, parts}; }
  Operands to(at::Device device) const {
    Operands moved{
        x.defined() ? x.to(device) : x, {}, weight.defined() ? weight.to(device) : weight};
    for (const Tensor& part : parts) moved.parts.push_back(part.to(device));
    return moved;
  }
};

Operands draw(at::Generator& generator, const Case& c) {
  const auto map = [&](at::ScalarType dtype) {
    return at::randn(c.sizes(), generator, at::kFloat).to(dtype);
  };
  Operands drawn;
  if (c.has_x) drawn.x = map(c.types.maps);
  for (int i = 0; i < c.parts; ++i) drawn.parts.push_back(map(c.types.parts));
  if (c.normed) drawn.weight = (at::randn({c.width}, generator, at::kFloat) * 2).to(c.types.maps);
  return drawn;
}

struct Made {
  Tensor y, sum;
};

Made expected_of(const Operands& of, const Case& c) {
  const Made made = {at::empty(c.sizes(), at::TensorOptions(c.types.parts)),
                     at::empty(c.sizes(), at::TensorOptions(c.types.maps))};
  kernels::RmsNormSiluArgs args;
  if (of.x.defined()) args.x = of.x.const_data_ptr();
  for (std::size_t i = 0; i < of.parts.size(); ++i) args.parts[i] = of.parts[i].const_data_ptr();
  if (of.weight.defined()) args.weight = of.weight.const_data_ptr();
  args.y = made.y.data_ptr();
  args.sum = made.sum.data_ptr();
  args.width = c.width;
  args.frame_rows = c.height * c.columns;
  args.rows = c.frames * args.frame_rows;
  args.y_frame_stride = args.frame_rows * c.width;
  args.part_count = c.parts;
  args.eps = static_cast<float>(kEps);
  args.dtype = kernel_dtype(c.types.maps);
  args.part_dtype = kernel_dtype(c.types.parts);
  kernels::rms_norm_silu_ref(args);
  return made;
}

std::int64_t count(const Tensor& mask) {
  return mask.sum().item<std::int64_t>();
}

double spacing(at::ScalarType dtype) {
  return dtype == at::kFloat ? 1e-6 : dtype == at::kHalf ? 0x1p-10 : 0x1p-7;
}

void check_case(const Case& c, at::Generator& generator, at::Device device, bool is_kernel) {
  const std::string what = c.name();
  CAPTURE(what);
  const Operands of = draw(generator, c);
  const Made expected = expected_of(of, c);
  const Operands there = of.to(device);
  // y is some rows of larger frames; the sum takes x's place.
  const Tensor frames = at::full({c.frames, c.height + 2, c.columns, c.width}, -77,
                                 at::TensorOptions(device).dtype(c.types.parts));
  const Tensor y = frames.narrow(1, 1, c.height);
  Tensor sum;
  if (c.stores_sum) sum = c.has_x ? there.x : at::empty_like(expected.sum, device);
  rms_norm_silu_out(y, sum, there.sum(), {there.weight, kEps},
                    is_kernel ? KernelPolicy::strict : KernelPolicy::reference);
  // ATen rounds between operations, where maps have 16 bits or parts are added to each other.
  const double between = is_kernel ? 0
                                   : 3 * spacing(c.types.maps) +
                                         (c.has_x || c.parts < 2 ? 0 : 2 * spacing(c.types.parts));
  const Tensor exact = expected.sum.to(at::kDouble);
  const Tensor terms = [&] {
    Tensor all = at::zeros_like(exact);
    if (of.x.defined()) all += of.x.abs();
    for (const Tensor& part : of.parts) all += part.abs();
    return all;
  }();
  if (sum.defined()) {
    const Tensor apart = (sum.cpu().to(at::kDouble) - exact).abs();
    CHECK(count(apart > terms * between) == 0);
  }
  Tensor scale = at::ones_like(exact);
  if (c.normed)
    scale = (exact.square().mean(3, true) + kEps).rsqrt() * of.weight.to(at::kDouble).abs();
  const double rounding = spacing(c.types.parts) + (c.types.parts == at::kFloat ? 2e-6 : 0);
  const Tensor apart = (y.cpu().to(at::kDouble) - expected.y.to(at::kDouble)).abs();
  CHECK(count(apart > terms * scale * (rounding + 2 * between) + 1e-7) == 0);
  if (is_kernel && c.types.parts != at::kFloat) CHECK(count(apart > 0) <= apart.numel() / 200 + 2);
  CHECK(count(expected.y.abs() > 0.05) > expected.y.numel() / 4);
  y.fill_(-77);
  CHECK(count(frames != -77) == 0);
}

// What the kernel's reference makes: y [2 * frames, h, w, width], and what it leaves of `before`.
std::pair<Tensor, Tensor> expected_pairs(const Tensor& x, const Tensor& before,
                                         const Tensor& weight) {
  const Tensor from = x.cpu(), by = weight.cpu(), left = before.cpu().contiguous();
  const Tensor y = at::empty({2 * x.size(0), x.size(1), x.size(2), x.size(3)}, left.options());
  kernels::RmsNormSiluArgs args;
  const bool of_maps = x.scalar_type() == weight.scalar_type();
  (of_maps ? args.x : args.parts[0]) = from.const_data_ptr();
  args.part_count = of_maps ? 0 : 1;
  args.weight = by.const_data_ptr();
  args.y = y.data_ptr();
  args.before = left.data_ptr();
  args.width = x.size(3);
  args.frame_rows = x.size(1) * x.size(2);
  args.rows = x.size(0) * args.frame_rows;
  args.y_frame_stride = args.before_frame_stride = args.frame_rows * args.width;
  args.eps = static_cast<float>(kEps);
  args.dtype = kernel_dtype(weight.scalar_type());
  args.part_dtype = kernel_dtype(before.scalar_type());
  kernels::rms_norm_silu_ref(args);
  return {y, left};
}

// Frames in pairs, against the kernel's reference, and to the bit against frames one by one by the
// same implementation, whose y they are made of.
void check_pairs(Types types, at::ScalarType of_x, std::int64_t width, std::int64_t pairs,
                 at::Generator& generator, at::Device device, KernelPolicy policy) {
  const std::string what =
      fmt::format("{} pairs of {} in {} and {}, {} channels", pairs, c10::toString(of_x),
                  c10::toString(types.maps), c10::toString(types.parts), width);
  CAPTURE(what);
  const std::int64_t frames = 2 * pairs, h = 7, w = 9;
  const auto draw = [&](at::IntArrayRef sizes, at::ScalarType dtype) {
    return at::randn(sizes, generator, at::kFloat).to(device, dtype);
  };
  const Tensor x = draw({frames, h, w, width}, of_x), weight = draw({width}, types.maps);
  const Tensor taller = draw({2, h + 2, w, width}, types.parts), before = taller.narrow(1, 1, h);
  const Tensor room = at::full({2 * frames, h + 2, w, width}, -77, before.options());
  const Tensor y = room.narrow(1, 1, h), d = at::empty({frames, h, w, width}, before.options());
  const std::vector<Tensor> part = {x};
  const MapSum of = of_x == types.maps ? MapSum{x, {}} : MapSum{{}, part};
  rms_norm_silu_out(d, {}, of, {weight, kEps}, policy);
  const Tensor all = at::cat({before, d}).to(at::kDouble), frame = taller.clone();
  rms_norm_silu_pairs_out(y, before, x, {weight, kEps}, policy);
  for (std::int64_t p = 0; p < pairs; ++p) {
    const auto at = [&](std::int64_t i) { return all[2 * p + i]; };
    const Tensor maps[] = {at(1) + at(2), at(2) - at(1), at(0) - at(2), at(3) - at(1)};
    for (std::int64_t i = 0; i < 4; ++i)
      CHECK(at::equal(y[i * pairs + p], maps[i].to(at::kFloat).to(types.parts)));
  }
  CHECK(at::equal(before, d.narrow(0, frames - 2, 2)));
  const auto [expected, expected_before] = expected_pairs(x, frame.narrow(1, 1, h), weight);
  const auto near = [&](const Tensor& found, const Tensor& exact) {
    const Tensor wide = exact.to(at::kFloat);
    return ((found.to(at::kCPU, at::kFloat) - wide).norm() / wide.norm()).item<double>() <
           2 * spacing(types.parts);
  };
  CHECK(near(y, expected));
  CHECK(near(before, expected_before));
  for (const std::int64_t row : {std::int64_t{0}, h + 1}) {
    CHECK(at::equal(taller.select(1, row), frame.select(1, row)));
    CHECK(count(room.select(1, row) != -77) == 0);
  }
}

}  // namespace

void check_rms_norm_silu_pairs(at::Device device, KernelPolicy policy) {
  at::Generator generator = at::detail::createCPUGenerator(42);
  for (const Types types : {Types{at::kFloat, at::kHalf}, Types{at::kBFloat16, at::kBFloat16},
                            Types{at::kHalf, at::kHalf}}) {
    for (const std::int64_t width : {8, 96, 192, 256, 384, 640, 1024}) {
      for (const at::ScalarType of_x : {types.maps, types.parts})
        check_pairs(types, of_x, width, width == 96 ? 1 : 2, generator, device, policy);
    }
  }
}

void check_rms_norm_silu(at::Device device, KernelPolicy policy) {
  at::Generator generator = at::detail::createCPUGenerator(41);
  const bool is_kernel = policy == KernelPolicy::strict;
  for (const Types types : {Types{at::kFloat, at::kHalf}, Types{at::kFloat, at::kFloat},
                            Types{at::kBFloat16, at::kBFloat16}, Types{at::kHalf, at::kHalf}}) {
    // Of two to four vectors a thread; wider than that; of no whole vectors.
    for (const std::int64_t width : {16, 96, 160, 192, 256, 384, 512, 640, 1024, 1152, 12, 1}) {
      check_case({types, width, true, 3, true, true}, generator, device, is_kernel);
      if (width == 1) continue;  // of one source y is silu of the weight, which may be small
      check_case({types, width, true, 0, false, true}, generator, device, is_kernel);
      check_case({types, width, false, 1, true, true}, generator, device, is_kernel);
      check_case({types, width, true, 1, true, true}, generator, device, is_kernel);
    }
    if (is_kernel) {  // more frames than blocks at a time, so that a block has rows to spare
      check_case({types, 8, true, 1, true, true, 4300, 10, 7}, generator, device, is_kernel);
      check_case({types, 96, false, 1, false, true, 4300, 5, 7}, generator, device, is_kernel);
    }
    for (const bool has_x : {true, false}) {
      for (const int parts : {0, 1, 2, 3}) {
        if (!has_x && parts == 0) continue;
        for (const bool stores_sum : {true, false}) {
          for (const bool normed : {true, false}) {
            check_case({types, 96, has_x, parts, stores_sum, normed}, generator, device, is_kernel);
            check_case({types, 36, has_x, parts, stores_sum, normed}, generator, device, is_kernel);
          }
        }
      }
    }
  }
}

void check_rms_norm_silu_arguments() {
  const Tensor x = at::ones({2, 3, 4, 8}), y = at::empty_like(x), weight = at::ones({8});
  const auto apply = [&](const Tensor& to, const Tensor& sum, const Tensor& from,
                         std::vector<Tensor> parts, const Tensor& by) {
    rms_norm_silu_out(to, sum, {from, parts}, {by, kEps}, KernelPolicy::reference);
  };
  apply(y, {}, x, {}, weight);
  CHECK(y[0][0][0][0].item<float>() == doctest::Approx(0.7310553));  // silu of 1 / sqrt(1 + eps)
  apply({}, y, x, {x, x}, {});
  CHECK(at::equal(y, x * 3));
  CHECK_THROWS_AS(apply(y, {}, {}, {}, weight), c10::Error);
  CHECK_THROWS_AS(apply(y, {}, x, {x, x, x, x}, weight), c10::Error);
  CHECK_THROWS_AS(apply(y, {}, x, {x, x.to(at::kHalf)}, weight), c10::Error);
  CHECK_THROWS_AS(apply(y, {}, x, {x.narrow(0, 0, 1)}, weight), c10::Error);
  CHECK_THROWS_AS(apply(y, {}, x.transpose(1, 2), {}, weight), c10::Error);
  CHECK_THROWS_AS(apply(y, {}, x, {}, weight.to(at::kHalf)), c10::Error);
  CHECK_THROWS_AS(apply(y, {}, x, {}, at::ones({7})), c10::Error);
  CHECK_THROWS_AS(apply(y, x.to(at::kHalf), x, {}, weight), c10::Error);
  CHECK_THROWS_AS(apply(y, {}, x, {x.to(at::kHalf)}, weight), c10::Error);
  CHECK_THROWS_AS(apply(y, {}, x, {x.to(at::kBFloat16)}, weight), c10::Error);
  CHECK_THROWS_AS(apply(y.to(at::kBFloat16), {}, x, {}, weight), c10::Error);
  CHECK_THROWS_AS(apply(at::empty({2, 3, 8, 4}).transpose(2, 3), {}, x, {}, weight), c10::Error);

  const Tensor maps = at::empty({4, 3, 4, 8}), before = at::zeros({2, 3, 4, 8});
  const auto pair = [&](const Tensor& to, const Tensor& kept, const Tensor& from,
                        const Tensor& by) {
    rms_norm_silu_pairs_out(to, kept, from, {by, kEps}, KernelPolicy::reference);
  };
  pair(maps, before, x, weight);
  CHECK(at::equal(before[0], maps[0]));  // d1 was 0
  CHECK_THROWS_AS(pair(maps, before, x.narrow(0, 0, 1), weight), c10::Error);
  CHECK_THROWS_AS(pair(maps.narrow(0, 0, 3), before, x, weight), c10::Error);
  CHECK_THROWS_AS(pair(maps, before.narrow(0, 0, 1), x, weight), c10::Error);
  CHECK_THROWS_AS(pair(maps, before.to(at::kHalf), x, weight), c10::Error);
  CHECK_THROWS_AS(pair(maps, before, x.to(at::kHalf), weight), c10::Error);
  CHECK_THROWS_AS(pair(maps, before, x, {}), c10::Error);
  CHECK(makes_frame_pairs(1024));
  CHECK(!makes_frame_pairs(1032));
}

}  // namespace diptych::testing
