// The kernels on raw pointers: outputs with gaps between the rows, starts that allow no vectors,
// and everything around the rows left as it was. What they compute is in tests/ops.
#include <fmt/format.h>

#include "kernels/qk_norm_rope/qk_norm_rope.h"
#include "kernels/rms_norm/rms_norm.h"
#include "kernels/rms_norm_silu/rms_norm_silu.h"
#include "kernels/silu_mul/silu_mul.h"
#include "tests/kernels/attention_cases.h"
#include "tests/kernels/conv3d_cases.h"
#include "tests/kernels/field.h"
#include "tests/kernels/linear_cases.h"
#include "tests/kernels/routed_cases.h"
#include "tests/support/skip.h"

using namespace diptych;
using namespace diptych::testing;

namespace {

constexpr const char* kSm90 = "needs sm90";
constexpr at::ScalarType kDtypes[] = {at::kFloat, at::kBFloat16, at::kHalf};

std::string text_of(const char* error) {
  return error == nullptr ? "" : error;
}

template <typename Args>
Runner<Args> on_gpu(const char* (*kernel)(const Args&, CUstream_st*)) {
  return {at::Device(at::kCUDA, 0),
          [kernel](const Args& args) { CHECK(text_of(kernel(args, nullptr)) == ""); }};
}

// The rows of both agree, and around them there are canaries only.
void check_field(const Field& gpu, const Field& reference, int ulps, const std::string& what) {
  check_close(gpu.rows, reference.rows, ulps, what);
  CAPTURE(what);
  gpu.rows.fill_(kCanary);
  CHECK(count(gpu.base != kCanary) == 0);
}

}  // namespace

TEST_CASE("rms_norm writes its rows and nothing else") {
  at::Generator generator = at::detail::createCPUGenerator(1);
  for (const at::ScalarType dtype : kDtypes) {
    for (const std::int64_t width : {64, 130, 3584, 40000}) {
      for (const Layout layout : kLayouts) {
        const std::string what = fmt::format("{} width {} layout {}", c10::toString(dtype), width,
                                             static_cast<int>(layout));
        const auto cpu = at::TensorOptions(dtype), gpu = cpu.device(at::kCUDA);
        const Tensor x = random_rows(generator, 5, width, 2, layout, cpu);
        const Tensor delta = random_rows(generator, 5, width, 2, layout, cpu);
        const Tensor weight = random_rows(generator, 1, width, 1, Layout::packed, cpu);
        const Tensor on_gpu[] = {x.cuda(), delta.cuda(), weight.cuda()};
        const Field sum[] = {make_field(5, width, layout, cpu), make_field(5, width, layout, gpu)};
        const Field y[] = {make_field(5, width, layout, cpu), make_field(5, width, layout, gpu)};
        kernels::RmsNormArgs args;
        args.rows = 5;
        args.width = width;
        args.eps = 1e-6F;
        args.dtype = kernel_dtype(dtype);
        const auto fill = [&](const Tensor& from, const Tensor& add, const Tensor& w, int at) {
          args.x = from.data_ptr();
          args.x_stride = from.stride(0);
          args.delta = add.data_ptr();
          args.delta_stride = add.stride(0);
          args.sets[0] = {w.data_ptr(), {nullptr, 0, 5}};
          args.sum = sum[at].rows.data_ptr();
          args.sum_stride = sum[at].rows.stride(0);
          args.y = y[at].rows.data_ptr();
          args.y_stride = y[at].rows.stride(0);
        };
        fill(x, delta, weight, 0);
        kernels::rms_norm_ref(args);
        fill(on_gpu[0], on_gpu[1], on_gpu[2], 1);
        CHECK(text_of(kernels::rms_norm(args, nullptr)) == "");
        check_field(sum[1], sum[0], 0, what);
        check_field(y[1], y[0], 2, what);
      }
    }
  }
}

TEST_CASE("silu_mul writes its rows and nothing else") {
  at::Generator generator = at::detail::createCPUGenerator(2);
  for (const at::ScalarType dtype : kDtypes) {
    for (const std::int64_t inner : {64, 65, 2056}) {
      for (const Layout layout : kLayouts) {
        const std::string what = fmt::format("{} inner {} layout {}", c10::toString(dtype), inner,
                                             static_cast<int>(layout));
        const auto cpu = at::TensorOptions(dtype), gpu = cpu.device(at::kCUDA);
        const Tensor gate_up = random_rows(generator, 5, 2 * inner, 3, layout, cpu);
        const Tensor on_gpu = gate_up.cuda();
        const Field expected = make_field(5, inner, layout, cpu),
                    y = make_field(5, inner, layout, gpu);
        kernels::SiluMulArgs args;
        args.rows = 5;
        args.inner = inner;
        args.y_stride = y.rows.stride(0);
        args.dtype = kernel_dtype(dtype);
        args.gate_up = gate_up.data_ptr();
        args.gate_up_stride = gate_up.stride(0);
        args.y = expected.rows.data_ptr();
        kernels::silu_mul_ref(args);
        args.gate_up = on_gpu.data_ptr();
        args.gate_up_stride = on_gpu.stride(0);
        args.y = y.rows.data_ptr();
        CHECK(text_of(kernels::silu_mul(args, nullptr)) == "");
        check_field(y, expected, 2, what);
      }
    }
  }
}

TEST_CASE("rows of two weight sets go through one launch") {
  check_routed_rms_norm(on_gpu<kernels::RmsNormArgs>(kernels::rms_norm));
  check_routed_qk_norm_rope(on_gpu<kernels::QkNormRopeArgs>(kernels::qk_norm_rope));
}

TEST_CASE("rows are quantised as they are written") {
  check_quantised_rms_norm(on_gpu<kernels::RmsNormArgs>(kernels::rms_norm));
  check_quantised_silu_mul(on_gpu<kernels::SiluMulArgs>(kernels::silu_mul));
}

TEST_CASE("quantised rows become numbers again") {
  check_dequantize_rows(on_gpu<kernels::DequantizeRowsArgs>(kernels::dequantize_rows));
}

TEST_CASE("silu of every gate is the reference's") {
  check_silu_of_every_gate(on_gpu<kernels::SiluMulArgs>(kernels::silu_mul));
}

TEST_CASE("quantised weights meet a few rows") {
  check_linear_row_quantised(on_gpu<kernels::LinearRowArgs>(kernels::linear_row));
  check_linear_row_alone(on_gpu<kernels::LinearRowArgs>(kernels::linear_row));
  check_linear_row_of_infinities(on_gpu<kernels::LinearRowArgs>(kernels::linear_row));
  check_linear_row_of_powers(on_gpu<kernels::LinearRowArgs>(kernels::linear_row));
}

TEST_CASE("weights of 16 bits meet several rows") {
  check_linear_row_plain(on_gpu<kernels::LinearRowArgs>(kernels::linear_row));
}

TEST_CASE("rows meet int8 weights as they are on compute capability 9.0" *
          doctest::test_suite(kSm90)) {
  if (!kernels::int8_linear_runs_here()) {
    return test::skip("this GPU or this build has no code for it");
  }
  check_int8_linear(on_gpu<kernels::Int8LinearArgs>(kernels::int8_linear));
}

TEST_CASE("the first half of a gated layer is one kernel on compute capability 9.0" *
          doctest::test_suite(kSm90)) {
  if (!kernels::gated_linear_runs_here()) {
    return test::skip("this GPU or this build has no code for it");
  }
  check_gated_linear(on_gpu<kernels::GatedLinearArgs>(kernels::gated_linear));
}

TEST_CASE("clips are convolved on compute capability 9.0" * doctest::test_suite(kSm90)) {
  if (!kernels::conv3d_runs_here()) {
    return test::skip("this GPU or this build has no code for it");
  }
  const Runner<kernels::Conv3dArgs> alone = on_gpu<kernels::Conv3dArgs>(kernels::conv3d);
  check_conv3d(alone);
  check_conv3d_of_many_tiles(alone);
  int shared = 0;
  const Runner<kernels::Conv3dArgs> sharing{
      alone.device, [&](kernels::Conv3dArgs args) {
        const std::int64_t bytes = kernels::conv3d_workspace(args);
        shared += bytes > 0 ? 1 : 0;
        // What is not written is not read.
        const Tensor workspace =
            at::full({bytes / 4}, std::nan(""), at::TensorOptions(at::kFloat).device(alone.device));
        args.workspace = workspace.data_ptr<float>();
        alone.run(args);
      }};
  check_conv3d_of_many_tiles(sharing);
  CHECK(shared > 0);  // all on a GPU of 132 multiprocessors
}

TEST_CASE("rows of two weight sets are multiplied where they lie on compute capability 9.0" *
          doctest::test_suite(kSm90)) {
  if (kernels::routed_linear_tiles() == 0) {
    return test::skip("this GPU or this build has no code for it");
  }
  check_routed_linear(on_gpu<kernels::RoutedLinearArgs>(kernels::routed_linear));
}

TEST_CASE("many rows attend to many keys on compute capability 9.0" * doctest::test_suite(kSm90)) {
  if (!kernels::hopper_attention_runs_here())
    return test::skip("the device or the build has no such kernel");
  const auto kernel = on_gpu<kernels::HopperAttentionArgs>(kernels::hopper_attention);
  check_hopper_attention(kernel);
  check_hopper_attention_alone(kernel);
}

TEST_CASE("many rows attend to many keys in e4m3 on compute capability 9.0" *
          doctest::test_suite(kSm90)) {
  if (!kernels::hopper_attention_runs_here())
    return test::skip("the device or the build has no such kernel");
  const auto kernel = on_gpu<kernels::HopperFp8AttentionArgs>(kernels::hopper_fp8_attention);
  check_hopper_fp8_attention(kernel);
  check_hopper_fp8_attention_alone(kernel);
}

TEST_CASE("calls that no kernel takes are refused with the reason, no rows are fine") {
  kernels::RmsNormArgs norm;
  CHECK(text_of(kernels::rms_norm(norm, nullptr)) == "the width is below 1");
  norm.width = 8;
  CHECK(text_of(kernels::rms_norm(norm, nullptr)) == "");
  norm.sets[1].rows.count = 1;
  CHECK(text_of(kernels::rms_norm(norm, nullptr)) == "a set has more rows than there are");
  norm.rows = std::int64_t{1} << 31;
  CHECK(text_of(kernels::rms_norm_unsupported(norm)) == "more than 2^31 - 1 rows");

  kernels::SiluMulArgs silu;
  CHECK(text_of(kernels::silu_mul(silu, nullptr)) == "the inner width is below 1");
  silu.inner = 8;
  CHECK(text_of(kernels::silu_mul(silu, nullptr)) == "");
  silu.shape = kernels::kSiluShapes;
  CHECK(text_of(kernels::silu_mul(silu, nullptr)) == "there is no such shape");

  kernels::LinearRowArgs linear;
  linear.inputs = linear.outputs = 16;
  linear.shape = -1;
  CHECK(text_of(kernels::linear_row(linear, nullptr)) == "there is no such shape");
  linear.inputs = (std::int64_t{1} << 30) + 1;
  CHECK(text_of(kernels::linear_row(linear, nullptr)) == "more than 2^30 inputs");

  kernels::LinearRowArgs several;
  const std::string too_many = "no rows, or more than such weights are multiplied with at once";
  several.inputs = several.outputs = 16;
  several.rows = 2;
  CHECK(text_of(kernels::linear_row_unsupported(several)) == too_many);
  several.dtype = kernels::DType::bf16;
  CHECK(text_of(kernels::linear_row_unsupported(several)) == "");
  several.inputs = 12;
  CHECK(text_of(kernels::linear_row_unsupported(several)) == too_many);
  several.inputs = 16;
  several.rows = kernels::kMostLinearRows + 1;
  CHECK(text_of(kernels::linear_row_unsupported(several)) == too_many);

  kernels::Int8LinearArgs mixed;
  CHECK(text_of(kernels::int8_linear(mixed, nullptr)) == "inputs or outputs is below 1");
  mixed.inputs = mixed.outputs = 16;
  CHECK(text_of(kernels::int8_linear(mixed, nullptr)) == "");
  mixed.rows = 2;
  CHECK(text_of(kernels::int8_linear(mixed, nullptr)) == "rows overlap");
  mixed.rows = 0;
  mixed.inputs = 24;
  CHECK(text_of(kernels::int8_linear(mixed, nullptr)) ==
        "rows do not begin at multiples of 16 bytes");
  mixed.dtype = kernels::DType::f32;
  CHECK(text_of(kernels::int8_linear(mixed, nullptr)) == "rows are not of bfloat16 or float16");
  mixed.shape = kernels::kInt8LinearShapes;
  CHECK(text_of(kernels::int8_linear(mixed, nullptr)) == "there is no such shape");

  kernels::GatedLinearArgs gated;
  CHECK(text_of(kernels::gated_linear(gated, nullptr)) == "inputs or the inner width is below 1");
  gated.inputs = gated.inner = 16;
  CHECK(text_of(kernels::gated_linear(gated, nullptr)) == "");
  gated.y_stride = 17;
  CHECK(text_of(kernels::gated_linear(gated, nullptr)) ==
        "rows do not begin at multiples of 16 bytes");
  gated.dtype = kernels::DType::f32;
  CHECK(text_of(kernels::gated_linear(gated, nullptr)) == "rows are not of bfloat16 or float16");

  alignas(16) kernels::RmsNormSiluArgs pairs;
  pairs.width = 8;
  pairs.frame_rows = 3;
  pairs.rows = 6;
  pairs.x = pairs.y = pairs.before = &pairs;
  pairs.dtype = pairs.part_dtype = kernels::DType::bf16;
  const auto refusal = [&](auto change) {
    kernels::RmsNormSiluArgs changed = pairs;
    change(changed);
    return text_of(kernels::rms_norm_silu_unsupported(changed));
  };
  CHECK(refusal([](auto&) {}) == "");
  CHECK(refusal([](auto& args) { args.sum = args.y; }) ==
        "pairs of frames are made of one map or part, without its sum");
  CHECK(refusal([](auto& args) { args.part_count = 1; }) ==
        "pairs of frames are made of one map or part, without its sum");
  CHECK(refusal([](auto& args) { args.rows = 9; }) == "an odd number of frames");
  const std::string kind = "pairs of rows that are of float32, wider than 1024 or not in vectors";
  CHECK(refusal([](auto& args) { args.width = 1032; }) == kind);
  CHECK(refusal([](auto& args) { args.width = 12; }) == kind);
  CHECK(refusal([](auto& args) { args.before_frame_stride = 4; }) == kind);
  CHECK(refusal([](auto& args) { args.dtype = args.part_dtype = kernels::DType::f32; }) == kind);

  kernels::Conv3dArgs conv;
  CHECK(text_of(kernels::conv3d(conv, nullptr)) == "a size is below 1");
  conv.frames = conv.height = conv.width = conv.y_height = conv.y_width = 1;
  conv.inputs = 8;
  CHECK(text_of(kernels::conv3d(conv, nullptr)) == "outputs are not from 1 to 4096");
  conv.outputs = 8;
  CHECK(text_of(kernels::conv3d(conv, nullptr)) == "weights overlap");
  conv.weight_stride = 12;
  CHECK(text_of(kernels::conv3d(conv, nullptr)) ==
        "pixels do not begin and end at multiples of 16 bytes");
  conv.weight_stride = 16;
  conv.bias = reinterpret_cast<const char*>(16) + 2;
  CHECK(text_of(kernels::conv3d(conv, nullptr)) ==
        "the bias does not begin at a multiple of 4 bytes");
  conv.pairs = true;
  CHECK(text_of(kernels::conv3d(conv, nullptr)) == "pairs of frames have four taps and no phases");
  conv.pairs = false;
  conv.shortcut = &conv;
  conv.side_phases = 2;
  CHECK(text_of(kernels::conv3d(conv, nullptr)) == "the shortcut has no such phases");
  conv.frame_phases = 2;
  CHECK(text_of(kernels::conv3d(conv, nullptr)) ==
        "the inputs of two frames are not multiples of 64");
  conv.column_taps = 4;
  CHECK(text_of(kernels::conv3d(conv, nullptr)) == "a kernel has more than 3 columns");
  conv.column_taps = 1;
  conv.row_taps = 9;
  CHECK(text_of(kernels::conv3d(conv, nullptr)) == "a kernel's side is not from 1 to 8");
  conv.row_taps = 1;
  conv.y_height = 11;
  CHECK(text_of(kernels::conv3d(conv, nullptr)) == "a padding is not from -8 to 8");

  kernels::HopperAttentionArgs attention;
  CHECK(text_of(kernels::hopper_attention(attention, nullptr)) == "there are no keys");
  attention.samples = attention.capacity = 1;
  attention.heads = 6;
  attention.kv_heads = 4;
  CHECK(text_of(kernels::hopper_attention(attention, nullptr)) ==
        "the heads are no multiple of the key heads");
  attention.kv_heads = 3;
  CHECK(text_of(kernels::hopper_attention(attention, nullptr)) == "");
  attention.value_stride = 4;
  CHECK(text_of(kernels::hopper_attention(attention, nullptr)) ==
        "rows do not begin at multiples of 16 bytes");
  attention.dtype = kernels::DType::f32;
  CHECK(text_of(kernels::hopper_attention(attention, nullptr)) ==
        "rows are not of bfloat16 or float16");

  kernels::HopperFp8AttentionArgs fp8;
  CHECK(text_of(kernels::hopper_fp8_attention(fp8, nullptr)) == "there are no keys");
  fp8.samples = fp8.heads = fp8.kv_heads = 1;
  fp8.capacity = 97;
  fp8.value_blocks = 4;
  CHECK(text_of(kernels::hopper_fp8_attention(fp8, nullptr)) ==
        "values have too few blocks for the keys");
  fp8.value_blocks = 6;
  CHECK(text_of(kernels::hopper_fp8_attention(fp8, nullptr)) == "");

  kernels::RoutedLinearArgs routed;
  CHECK(text_of(kernels::routed_linear(routed, nullptr)) == "inputs or outputs is below 1");
  routed.inputs = routed.outputs = 16;
  CHECK(text_of(kernels::routed_linear(routed, nullptr)) == "");
  routed.stored = kernels::Stored::e4m3;
  CHECK(text_of(kernels::routed_linear(routed, nullptr)) ==
        "scales come with e4m3 rows and with no others");
  routed.stored = kernels::Stored::plain;
  routed.inputs = 12;
  CHECK(text_of(kernels::routed_linear(routed, nullptr)) ==
        "rows do not begin and end at multiples of 16 bytes");
  routed.dtype = kernels::DType::f32;
  CHECK(text_of(kernels::routed_linear(routed, nullptr)) == "rows are not of bfloat16 or float16");

  kernels::QkNormRopeArgs rope;
  rope.heads = rope.kv_heads = rope.samples = rope.capacity = 1;
  rope.head_dim = 258;
  CHECK(text_of(kernels::qk_norm_rope(rope, nullptr)) ==
        "head_dim is not an even number from 2 to 256");
  rope.head_dim = 256;
  CHECK(text_of(kernels::qk_norm_rope(rope, nullptr)) == "");
}
