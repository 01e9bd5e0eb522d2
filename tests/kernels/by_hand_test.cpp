// References against values worked out by hand.
#include <cmath>
#include <vector>

#include <doctest/doctest.h>

#include "kernels/dequantize_rows/dequantize_rows.h"
#include "kernels/group_norm_silu/group_norm_silu.h"
#include "kernels/host_float.h"
#include "kernels/linear_row/linear_row.h"
#include "kernels/rms_norm_silu/rms_norm_silu.h"

using namespace diptych::kernels;

namespace {

// 1, 1.5, 2, 448 and -0.5 as e4m3: sign, four bits of exponent with a bias of 7, three of fraction.
constexpr std::uint8_t kOne = 0x38, kOneHalf = 0x3c, kTwo = 0x40, kMost = 0x7e, kMinusHalf = 0xb0;

std::vector<float> widened(const std::vector<HostBf16>& values) {
  std::vector<float> wide;
  for (const HostBf16& value : values) wide.push_back(widen(value));
  return wide;
}

}  // namespace

TEST_CASE("dequantize_rows by hand") {
  const std::vector<std::int8_t> values = {-127, 0, 64, 1, 127, 3};
  const std::vector<float> scales = {0.5F, 1.00390625F};  // 1 + 2^-8
  DequantizeRowsArgs args;
  args.values = values.data();
  args.scales = scales.data();
  args.rows = 2;
  args.width = 3;
  std::vector<float> y(6);
  args.y = y.data();
  dequantize_rows_ref(args);
  CHECK(y == std::vector<float>{-63.5F, 0, 32, 1.00390625F, 127.49609375F, 3.01171875F});
  std::vector<HostBf16> narrow(6);
  args.y = narrow.data();
  args.dtype = DType::bf16;
  dequantize_rows_ref(args);
  // Eight bits: a tie goes to 1, whose last bit is 0; the others to multiples of 2^-1 and 2^-6.
  CHECK(widened(narrow) == std::vector<float>{-63.5F, 0, 32, 1, 127.5F, 3.015625F});
}

TEST_CASE("linear_row by hand: plain weights") {
  const std::vector<float> x = {2, 10, -1}, weight = {1, 2, 3, -1, 0.5F, 4}, bias = {0.5F, -2};
  LinearRowArgs args;
  args.x = x.data();
  args.weight = weight.data();
  args.bias = bias.data();
  args.inputs = 3;
  args.outputs = 2;
  std::vector<float> y(2);
  args.y = y.data();
  linear_row_ref(args);
  CHECK(y == std::vector<float>{2 + 20 - 3 + 0.5F, -2 + 5 - 4 - 2});
}

TEST_CASE("linear_row by hand: e4m3 by e4m3, a scale for each row of both") {
  const std::vector<std::uint8_t> x = {kOne, kMost, kOneHalf, kTwo},
                                  weight = {kOne, kMinusHalf, kTwo, kOneHalf};
  const std::vector<float> x_scales = {0.5F, 4}, scales = {2, 0.25F}, bias = {1, -1};
  LinearRowArgs args;
  args.x = x.data();
  args.x_scales = x_scales.data();
  args.weight = weight.data();
  args.scales = scales.data();
  args.bias = bias.data();
  args.rows = args.inputs = args.outputs = 2;
  args.stored = Stored::e4m3;
  std::vector<float> y(4);
  args.y = y.data();
  linear_row_ref(args);
  CHECK(y == std::vector<float>{(1 - 224) * 0.5F * 2 + 1, (2 + 672) * 0.5F * 0.25F - 1,
                                (1.5F - 1) * 4 * 2 + 1, (3 + 3) * 4 * 0.25F - 1});
  const std::vector<HostBf16> narrow_bias = {round_to<HostBf16>(1), round_to<HostBf16>(-1)};
  std::vector<HostBf16> narrow(4);
  args.bias = narrow_bias.data();
  args.y = narrow.data();
  args.dtype = DType::bf16;
  linear_row_ref(args);
  // 83.25, between 83 and 83.5, goes to the one whose last bit is 0.
  CHECK(widened(narrow) == std::vector<float>{-222, 83, 5, 5});
}

TEST_CASE("linear_row by hand: plain rows by int8, and one by e4m3") {
  const std::vector<float> x = {2, 1, -4, 0.5F}, scales = {0.5F, 2};
  const std::vector<std::int8_t> weight = {127, -127, 3, 0};
  LinearRowArgs args;
  args.x = x.data();
  args.weight = weight.data();
  args.scales = scales.data();
  args.rows = args.inputs = args.outputs = 2;
  args.stored = Stored::i8;
  std::vector<float> y(4);
  args.y = y.data();
  linear_row_ref(args);
  CHECK(y == std::vector<float>{(254 - 127) * 0.5F, 6 * 2, (-508 - 63.5F) * 0.5F, -12 * 2});
  const std::vector<std::uint8_t> codes = {kMost, kMinusHalf, kOne, kTwo};
  args.weight = codes.data();
  args.stored = Stored::e4m3;
  args.rows = 1;
  linear_row_ref(args);
  CHECK(y == std::vector<float>{(896 - 0.5F) * 0.5F, (2 + 2) * 2, -285.75F, -24});
}

TEST_CASE("group_norm_table by hand: two groups of two channels, two pixels") {
  // The first group: mean 4, variance 5. The second: 7 alone, so the offset is the bias.
  const std::vector<float> x = {1, 3, 7, 7, 5, 7, 7, 7}, weight = {1, 2, 1, 1}, bias = {0, 1, 3, 0};
  GroupNormTableArgs args;
  args.x = x.data();
  args.weight = weight.data();
  args.bias = bias.data();
  args.samples = 1;
  args.pixels = 2;
  args.channels = 4;
  args.groups = 2;
  args.eps = 0.25F;
  std::vector<float> table(8);
  args.table = table.data();
  group_norm_table_ref(args);
  const auto factor = static_cast<float>(1 / std::sqrt(5.25));
  CHECK(table[0] == factor);
  CHECK(table[1] == 2 * factor);
  CHECK(table[2] == 2.0F);  // 1 / sqrt(0.25)
  CHECK(table[4] == -4 * factor);
  CHECK(table[5] == doctest::Approx(1 - 8 / std::sqrt(5.25)));
  CHECK(table[6] == 3 - 14.0F);
}

TEST_CASE("rms_norm_silu by hand: two rows of two channels in frames of one") {
  // Sums 3, 4 and 0, 0. With eps 12.5 the first row's scale is 1 / 5.
  const std::vector<float> x = {1, 1, 2, -2}, part = {2, 3, -2, 2}, weight = {5, -5};
  RmsNormSiluArgs args;
  args.x = x.data();
  args.parts[0] = part.data();
  args.part_count = 1;
  args.weight = weight.data();
  args.rows = args.width = 2;
  args.frame_rows = 1;
  args.y_frame_stride = 3;
  args.eps = 12.5F;
  std::vector<float> y(5, 7), sum(4);
  args.y = y.data();
  args.sum = sum.data();
  rms_norm_silu_ref(args);
  CHECK(sum == std::vector<float>{3, 4, 0, 0});
  CHECK(y[0] == doctest::Approx(3 / (1 + std::exp(-3.0))));
  CHECK(y[1] == doctest::Approx(-4 / (1 + std::exp(4.0))));
  CHECK(y[2] == 7);
  CHECK(y[3] == 0);
  args.weight = nullptr;
  rms_norm_silu_ref(args);
  CHECK(y == std::vector<float>{3, 4, 7, 0, 0});
}

TEST_CASE("rms_norm_silu by hand: two pairs of frames of one channel, without a norm") {
  const std::vector<float> x = {3, 5, 9, 10};
  std::vector<float> before = {1, 7, 2}, y(8);  // a frame each at 0 and 2
  RmsNormSiluArgs args;
  args.x = x.data();
  args.y = y.data();
  args.before = before.data();
  args.before_frame_stride = 2;
  args.rows = 4;
  args.width = args.frame_rows = args.y_frame_stride = 1;
  rms_norm_silu_ref(args);
  CHECK(y == std::vector<float>{2 + 3, 5 + 9, 3 - 2, 9 - 5, 1 - 3, 3 - 9, 5 - 2, 10 - 5});
  CHECK(before == std::vector<float>{9, 7, 10});
}

TEST_CASE("group_norm_silu by hand: rounded to TF32, ties away from zero") {
  // Factor 1 and no offset: the values themselves. 1 + 2^-11 is halfway to 1 + 2^-10.
  const std::vector<float> table = {1, 0}, x = {1, 1.00048828125F, -1.00048828125F, 1.0004F, 0};
  GroupNormSiluArgs args;
  args.x = x.data();
  args.table = table.data();
  args.samples = args.channels = 1;
  args.pixels = 5;
  args.silu = false;
  args.round_to_tf32 = true;
  std::vector<float> y(5);
  args.y = y.data();
  group_norm_silu_ref(args);
  CHECK(y == std::vector<float>{1, 1.0009765625F, -1.0009765625F, 1, 0});
  args.silu = true;
  args.round_to_tf32 = false;
  group_norm_silu_ref(args);
  CHECK(y[0] == doctest::Approx(0.7310585786));
  CHECK(y[4] == 0);
}
