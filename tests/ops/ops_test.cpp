#include <doctest/doctest.h>

#include "lib/base/error.h"
#include "lib/ops/kernel_call.h"
#include "lib/tuning/table.h"
#include "tests/kernels/closeness.h"
#include "tests/ops/cases.h"
#include "tests/ops/group_norm_cases.h"
#include "tests/ops/product_cases.h"
#include "tests/ops/quantized_cases.h"
#include "tests/ops/rms_norm_silu_cases.h"
#include "tests/ops/rope_attention_cases.h"
#include "tests/ops/row_chain_cases.h"

using namespace diptych;
using namespace diptych::testing;

namespace {

const at::Device kCpu(at::kCPU);

QkNormRope small_rope() {
  QkNormRope args;
  args.heads = 2;
  args.kv_heads = 1;
  args.head_dim = 4;
  args.qkv = at::ones({2, 16});
  args.routes = {{at::ones({4}), at::ones({4}), RowSet::range(0, 2)}};
  args.cos = args.sin = at::ones({2, 2});
  args.slots = at::arange(2, at::kLong);
  args.keys = at::zeros({1, 3, 1, 4});
  args.values = at::zeros({1, 3, 1, 4});
  return args;
}

template <typename Error, typename Call>
void check_throws(const Call& call, const std::string& part) {
  try {
    call();
  } catch (const Error& error) {
    CHECK_MESSAGE(std::string(error.what()).find(part) != std::string::npos, error.what());
    return;
  }
  FAIL_CHECK("nothing was thrown; expected: " << part);
}

}  // namespace

TEST_CASE("rms_norm in ATen agrees with the kernel's reference") {
  check_rms_norm(kCpu, KernelPolicy::automatic);
}
TEST_CASE("add_rms_norm_ in ATen agrees with the kernel's reference") {
  check_add_rms_norm(kCpu, KernelPolicy::automatic);
}
TEST_CASE("group_norm_silu in ATen agrees with the kernel's reference") {
  check_group_norm(kCpu, KernelPolicy::automatic);
  check_group_norm_arguments();
}
TEST_CASE("rms_norm_silu in ATen agrees with the kernel's reference") {
  check_rms_norm_silu(kCpu, KernelPolicy::automatic);
  check_rms_norm_silu_pairs(kCpu, KernelPolicy::automatic);
  check_rms_norm_silu_arguments();
}
TEST_CASE("layer_norm and gated sums in ATen agree with the kernel's reference") {
  check_layer_norm(kCpu, KernelPolicy::automatic);
  check_add_layer_norm(kCpu, KernelPolicy::automatic);
  check_layer_norm_rows_quantized(kCpu, KernelPolicy::automatic);
  check_layer_norm_arguments();
}
TEST_CASE("rms_norm_rope_ in ATen agrees with the kernel's reference") {
  check_rms_norm_rope(kCpu, KernelPolicy::automatic);
  check_rms_norm_rope_arguments();
}
TEST_CASE("axial_rope_table: frames, rows and columns") {
  check_axial_rope_table();
}
TEST_CASE("silu_mul in ATen agrees with the kernel's reference") {
  check_silu_mul(kCpu, KernelPolicy::automatic);
}
TEST_CASE("qk_norm_rope in ATen agrees with the kernel's reference") {
  check_qk_norm_rope(kCpu, KernelPolicy::automatic);
}
TEST_CASE("ops in ATen give rows of two sets their own weights") {
  check_routes(kCpu, KernelPolicy::automatic);
}
TEST_CASE("qk_norm_rope in ATen writes its slots and nothing else") {
  check_no_trespassing(kCpu, KernelPolicy::reference);
}
TEST_CASE("linear of one row in ATen agrees with the kernel's reference") {
  check_linear_row(kCpu, KernelPolicy::automatic);
}
TEST_CASE("quantised rows in ATen are those worked out by hand, and the kernel's reference's") {
  check_quantized_by_hand(kCpu, KernelPolicy::automatic);
  check_quantize_rows(kCpu, KernelPolicy::automatic);
  check_gelu(kCpu, KernelPolicy::automatic);
  check_quantize_attention(kCpu, KernelPolicy::automatic);
}
TEST_CASE("ops in ATen hand on the rows that quantize_rows would make") {
  check_rows_made_quantized(kCpu, KernelPolicy::automatic);
  check_product_of_quantized_rows(kCpu, KernelPolicy::automatic);
}
TEST_CASE("products with quantised weights in ATen are near those of float64") {
  check_quantized_linear(kCpu, KernelPolicy::automatic, 16);
  check_quantized_like_cpu(kCpu, KernelPolicy::reference);
}
TEST_CASE("plain products in ATen are near those of float64") {
  check_plain_products(kCpu, KernelPolicy::automatic, 16);
}
TEST_CASE("products in ATen take each row to the weight of its set") {
  check_routed_products(kCpu, KernelPolicy::automatic);
}
TEST_CASE("listed rows take one launch where an H200 was faster with it") {
  check_routed_choice();
}

TEST_CASE("convolutions with phases in ATen are those of the kernel's reference") {
  check_convolutions(kCpu);
  check_convolution_of_pairs(kCpu);
}

TEST_CASE("products in parts of 16 bits are near those of float64") {
  check_split_products(kCpu);
}

TEST_CASE("the first half of a gated layer in ATen is that of float64") {
  check_gated_products(kCpu, KernelPolicy::automatic);
}
TEST_CASE("a tuning is taken for rows in bfloat16 alone, in which it was measured") {
  const TuningTable table;
  const Kernels tuned(KernelPolicy::automatic, &table);
  CHECK(ops::tuning_for(at::kBFloat16, tuned) == &table);
  for (const at::ScalarType dtype : {at::kFloat, at::kHalf})
    CHECK(ops::tuning_for(dtype, tuned) == nullptr);
  CHECK(ops::tuning_for(at::kBFloat16, KernelPolicy::automatic) == nullptr);
}
TEST_CASE("decode_attention in ATen agrees with the kernel's reference") {
  check_decode_attention(kCpu, KernelPolicy::automatic);
  check_decode_attention_arguments();
}
TEST_CASE("rope_attention by two ops agrees with the kernel's reference") {
  check_rope_attention(kCpu, KernelPolicy::automatic);
  check_rope_attention_of_steps(kCpu, KernelPolicy::automatic);
  check_rope_attention_of_samples(kCpu, KernelPolicy::automatic);
}
TEST_CASE("the ops in ATen give what Python recorded") {
  check_recorded(kCpu, KernelPolicy::automatic);
  check_recorded(kCpu, KernelPolicy::reference);
}

TEST_CASE("rope_table is transformers'") {
  const Tensor positions = at::tensor({0, 1, 77, 32767}, at::kLong);
  const auto [cos, sin] = rope_table_at(positions, 6, at::kFloat);
  const Tensor expected_cos =
      at::tensor({1.0, 1.0, 1.0, 0.540302336, 0.999949992, 1.0, -0.0309750326, 0.717910707,
                  0.999970376, 0.982263327, 0.586296797, -0.990886986},
                 at::kFloat);
  const Tensor expected_sin =
      at::tensor({0.0, 0.0, 0.0, 0.841470957, 0.00999983214, 9.99999684e-05, 0.999520183,
                  0.696135163, 0.00769992173, 0.187506557, 0.810096323, -0.134695753},
                 at::kFloat);
  check_close(cos.flatten(), expected_cos, 0, "cos");
  check_close(sin.flatten(), expected_sin, 0, "sin");
}

TEST_CASE("rope_table rounds to the dtype and stays float32") {
  const auto [cos, sin] = rope_table_at(at::tensor({77, 32767}, at::kLong), 6, at::kBFloat16);
  CHECK((cos.scalar_type() == at::kFloat));
  CHECK(at::equal(
      cos.flatten(),
      at::tensor({-0.031005859375, 0.71875, 1.0, 0.98046875, 0.5859375, -0.9921875}, at::kFloat)));
  CHECK(at::equal(
      sin.flatten(),
      at::tensor({1.0, 0.6953125, 0.0076904296875, 0.1875, 0.80859375, -0.134765625}, at::kFloat)));
  const auto [no_cos, no_sin] = rope_table_at(at::empty({0}, at::kLong), 6, at::kFloat);
  CHECK((no_cos.sizes() == at::IntArrayRef({0, 3})));
  CHECK((no_sin.sizes() == at::IntArrayRef({0, 3})));
}

TEST_CASE("timestep_embedding is the official code's") {
  const Tensor expected =
      at::tensor({0.731688857, 0.999394119, 0.999998689, 0.681638777, 0.0348048881, 0.00161582534},
                 at::kFloat);
  check_close(timestep_embedding(0.75F, 6), expected, 0, "dim 6");
  const Tensor wide = timestep_embedding(0.9375F, 256);
  CHECK((wide.sizes() == at::IntArrayRef({256})));
  const Tensor chosen =
      wide.index_select(0, at::tensor({0, 1, 64, 127, 128, 129, 200, 255}, at::kLong));
  check_close(chosen,
              at::tensor({0.5918051, 0.642981708, 0.999956071, 1.0, 0.806081116, 0.765881538,
                          0.00527192466, 0.000100744459},
                         at::kFloat),
              0, "dim 256");
}

TEST_CASE("strict refuses a device without kernels") {
  const Tensor x = at::ones({2, 8}), weight = at::ones({8});
  check_throws<InputError>([&] { rms_norm(x, weight, 1e-6, KernelPolicy::strict); },
                           "[rms_norm] kernels: strict, but there are kernels for cuda only");
  check_throws<InputError>([&] { silu_mul(x, KernelPolicy::strict); }, "the rows are on cpu");
  check_throws<InputError>([&] { qk_norm_rope(small_rope(), KernelPolicy::strict); },
                           "[qk_norm_rope]");
}

TEST_CASE("wrong arguments are named with what was found") {
  const auto automatic = KernelPolicy::automatic;
  Tensor x = at::ones({2, 8});
  check_throws<c10::Error>([&] { rms_norm(at::ones({8}), at::ones({8}), 1e-6, automatic); },
                           "[rms_norm] x is [8], expected [rows, width]");
  check_throws<c10::Error>([&] { rms_norm(x, at::ones({7}), 1e-6, automatic); },
                           "[rms_norm] weight is [7], expected [8]");
  check_throws<c10::Error>([&] { rms_norm(x, at::ones({8}, at::kHalf), 1e-6, automatic); },
                           "[rms_norm] weight is Half, the rows are Float");
  check_throws<c10::Error>(
      [&] {
        rms_norm(at::ones({8, 2}).t(), at::ones({8}), 1e-6, automatic);
      },
      "not contiguous in its last dimension");
  check_throws<c10::Error>(
      [&] {
        rms_norm(at::ones({2, 8}, at::kDouble), at::ones({8}, at::kDouble), 1e-6, automatic);
      },
      "expected float32, bfloat16 or float16");
  check_throws<c10::Error>(
      [&] {
        const NormRoute all{at::ones({8}), RowSet::range(0, 2)};
        add_rms_norm_(x, at::ones({1, 8}), std::span(&all, 1), 1e-6, automatic);
      },
      "[add_rms_norm_] delta is [1, 8], expected [2, 8]");
  check_throws<c10::Error>(
      [&] {
        silu_mul(at::ones({2, 7}), automatic);
      },
      "expected [rows, 2 * inner]");

  const LinearOperand weight{at::ones({4, 8}).to(at::kChar), at::ones({4})};
  check_throws<c10::Error>(
      [&] {
        linear(at::ones({2, 7}), weight, {}, automatic);
      },
      "[linear] weight is [4, 8], expected [4, 7]");
  check_throws<c10::Error>(
      [&] {
        linear(x, LinearOperand{weight.values, at::ones({3})}, {}, automatic);
      },
      "[linear] scales is [3], expected [4]");
  check_throws<c10::Error>(
      [&] {
        linear(x, LinearOperand{at::ones({4, 8}), at::ones({4})}, {}, automatic);
      },
      "[linear] weight is Float with scales, expected float8_e4m3fn or int8");
  check_throws<c10::Error>(
      [&] {
        linear_into(at::ones({2, 4}), quantize_rows(x, Quantization::fp8, automatic), weight, {},
                    automatic);
      },
      "[linear] rows of float8_e4m3fn meet a weight of Char");
  check_throws<c10::Error>([&] { silu_mul(x, Quantization::int8, automatic); },
                           "[silu_mul] rows are none or fp8, not int8");
  check_throws<c10::Error>(
      [&] {
        quantize_rows(x, {at::ones({2, 8}), at::ones({2})}, automatic);
      },
      "[quantize_rows] values are not float8_e4m3fn or int8");
  check_throws<c10::Error>(
      [&] {
        quantize_rows(x, {at::ones({2, 7}).to(at::kChar), at::ones({2})}, automatic);
      },
      "[quantize_rows] values is [2, 7], expected [2, 8]");

  const auto rope_throws = [&](const auto& spoil, const std::string& part) {
    QkNormRope args = small_rope();
    spoil(args);
    check_throws<c10::Error>([&] { qk_norm_rope(args, automatic); }, part);
  };
  rope_throws([](QkNormRope& a) { a.head_dim = 5; }, "head_dim is 5");
  rope_throws([](QkNormRope& a) { a.heads = 3; }, "qkv is [2, 16], expected [2, 20]");
  rope_throws([](QkNormRope& a) { a.cos = at::ones({2, 4}); }, "cos is [2, 4], expected [2, 2]");
  rope_throws([](QkNormRope& a) { a.sin = a.sin.to(at::kHalf); }, "sin is Half, expected Float");
  rope_throws([](QkNormRope& a) { a.slots = a.slots.to(at::kInt); }, "slots is Int, expected Long");
  rope_throws([](QkNormRope& a) { a.slots = at::tensor({0, 3}, at::kLong); }, "the cache has 3");
  rope_throws(
      [](QkNormRope& a) {
        a.slots = at::tensor({-1, 0}, at::kLong);
      },
      "slots are in -1..0");
  rope_throws([](QkNormRope& a) { a.values = at::zeros({1, 2, 1, 4}); }, "values is [1, 2, 1, 4]");
  rope_throws(
      [](QkNormRope& a) {
        a.keys = at::zeros({1, 4, 1, 3}).transpose(1, 3);
      },
      "not contiguous");
}

TEST_CASE("wrong routes are named with what was found") {
  const auto automatic = KernelPolicy::automatic;
  const Tensor x = at::ones({4, 8}), weight = at::ones({8});
  const auto norm_throws = [&](const std::vector<NormRoute>& routes, const std::string& part) {
    check_throws<c10::Error>([&] { rms_norm(x, routes, 1e-6, automatic); }, part);
  };
  const RowSet first = RowSet::range(0, 2), second = RowSet::range(2, 2);
  norm_throws({}, "[rms_norm] 0 sets of rows, expected 1 or 2");
  norm_throws({{weight, first}, {weight, second}, {weight, second}}, "3 sets of rows");
  norm_throws({{weight, first}, {at::ones({7}), second}}, "weight is [7], expected [8]");
  norm_throws({{weight, RowSet::range(3, 2)}}, "[rms_norm] a range of rows ends outside the rows");
  norm_throws({{weight, first}, {weight, RowSet::range(1, 2)}}, "the ranges of rows overlap");
  norm_throws({{weight, RowSet::list(at::arange(2, at::kInt))}}, "a list of rows is Int");
  norm_throws({{weight, RowSet::list(at::arange(5, at::kLong))}}, "more rows than there are");
  norm_throws({{weight, RowSet::list(at::full({1}, 4, at::kLong))}}, "out of range");

  QkNormRope rope = small_rope();
  rope.routes.push_back({at::ones({4}), at::ones({4}), RowSet::range(1, 1)});
  check_throws<c10::Error>([&] { qk_norm_rope(rope, automatic); },
                           "[qk_norm_rope] the sets have more rows than there are");
}

TEST_CASE("a slot of a row that is in no set is not looked at") {
  QkNormRope args = small_rope();
  args.slots = at::tensor({1, 99}, at::kLong);
  args.routes[0].rows = RowSet::range(0, 1);
  const Tensor q = qk_norm_rope(args, KernelPolicy::automatic);
  CHECK(q[0].sum().item<float>() == doctest::Approx(8));
  CHECK(count(args.values != 0) == 4);
  CHECK(args.values[0][1].sum().item<float>() == 4);
}

TEST_CASE("a rejected slot leaves the cache as it was") {
  QkNormRope args = small_rope();
  args.slots = at::tensor({0, 3}, at::kLong);
  CHECK_THROWS_AS(qk_norm_rope(args, KernelPolicy::automatic), c10::Error);
  CHECK(count(args.keys != 0) == 0);
  CHECK(count(args.values != 0) == 0);
}
