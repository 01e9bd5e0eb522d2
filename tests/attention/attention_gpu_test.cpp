#include <doctest/doctest.h>

#include "lib/attention/backends.h"
#include "lib/ops/quantize_attention.h"
#include "tests/attention/cases.h"
#include "tests/attention/inputs.h"
#include "tests/support/skip.h"

namespace diptych {
namespace {

const at::Device kGpu(at::kCUDA, 0);

void collect(void* context, const std::string& text) {
  static_cast<std::vector<std::string>*>(context)->push_back(text);
}

}  // namespace

TEST_CASE("every backend agrees with loops in double") {
  attention_cases::check_table(kGpu);
}

TEST_CASE("rows behind the keys are not read") {
  attention_cases::check_rows_behind_keys_unread(kGpu);
}

TEST_CASE("samples are isolated, bit for bit") {
  attention_cases::check_isolation(kGpu);
}

TEST_CASE("math_in_order sums values key after key") {
  attention_cases::check_order(kGpu);
}

TEST_CASE("from Ampere on flash is usable, and cudnn where it is built in") {
  const ComputeCapability capability = compute_capability(kGpu).value();
  for (const AttentionInfo& info : list_attention(kGpu)) {
    INFO(info.name, ": ", info.unavailable.value_or("usable"));
    if (info.name == "flash") CHECK(info.unavailable.has_value() == (capability.major < 8));
    if (info.name == "cudnn" && DIPTYCH_HAVE_CUDNN == 0) CHECK(info.unavailable.has_value());
    if (info.name == "sdpa" || info.name == "math") CHECK_FALSE(info.unavailable.has_value());
  }
}

TEST_CASE("flash and cudnn refuse float32 and odd heads by the kind of call alone") {
  for (const AttentionInfo& info : list_attention(kGpu)) {
    if (info.unavailable || (info.name != "flash" && info.name != "cudnn")) continue;
    INFO("backend: ", info.name);
    CHECK_FALSE(attention_unsupported(info.name, {kGpu, at::kBFloat16, 128}).has_value());
    CHECK(attention_unsupported(info.name, {kGpu, at::kFloat, 128}) ==
          "needs bfloat16 or float16, not Float");
    CHECK(attention_unsupported(info.name, {kGpu, at::kBFloat16, 20}).has_value());
  }
  CHECK_FALSE(attention_unsupported("auto", {kGpu, at::kFloat, 20}).has_value());
}

TEST_CASE("auto takes the fastest in bfloat16, and sdpa in float32 with one line about it") {
  const auto inputs =
      attention_cases::make_inputs({"", 28, 4, 128, {140, 140}, {160, 140}, 164}, 0);
  const ComputeCapability capability = compute_capability(kGpu).value();
  const bool cudnn = capability.major >= 9 && !cudnn_unavailable(kGpu);
  const std::string plain = capability.major >= 8 ? "flash" : "sdpa";
  const std::string fused = cudnn ? "cudnn" : plain;
  const std::string fastest = hopper_unavailable(kGpu) ? fused : "hopper";
  const auto many = make_attention("auto", kGpu);
  many->forward(inputs.to(kGpu, at::kBFloat16).call(false));
  CHECK(many->served_by() == fastest);
  const auto of_libraries = make_attention("auto", kGpu, {.kernels = KernelPolicy::reference});
  of_libraries->forward(inputs.to(kGpu, at::kBFloat16).call(false));
  CHECK(of_libraries->served_by() == fused);
  // Few queries, or a causal prefill, are not worth building a plan for.
  const auto prefill = make_attention("auto", kGpu);
  prefill->forward(inputs.to(kGpu, at::kBFloat16).call(true));
  CHECK(prefill->served_by() == plain);
  const auto few = attention_cases::make_inputs({"", 28, 4, 128, {2, 2}, {60, 40}, 64}, 0)
                       .to(kGpu, at::kBFloat16);
  const auto markers = make_attention("auto", kGpu);
  markers->forward(few.call(false));
  CHECK(markers->served_by() == "splitkv");
  markers->forward(few.call(true));
  CHECK(markers->served_by() == "splitkv");
  const auto without = make_attention("auto", kGpu, {.kernels = KernelPolicy::reference});
  without->forward(few.call(false));
  CHECK(without->served_by() == plain);
  std::vector<std::string> said;
  const auto single = make_attention("auto", kGpu, {.say = collect, .context = &said});
  said.clear();  // what this build lacks is said when it is made
  const auto on_gpu = inputs.to(kGpu, at::kFloat);
  for (int repeat = 0; repeat < 3; ++repeat) single->forward(on_gpu.call(false));
  CHECK(single->served_by() == "sdpa");
  CHECK(said.size() == (capability.major >= 8 ? 1 : 0));
}

TEST_CASE("hopper says what it cannot serve, and gives the log-sum-exp") {
  if (const auto reason = hopper_unavailable(kGpu)) return test::skip(*reason);
  const auto hopper = make_attention("hopper", kGpu);
  CHECK_FALSE(attention_unsupported("hopper", {kGpu, at::kHalf, 128}).has_value());
  CHECK(attention_unsupported("hopper", {kGpu, at::kFloat, 128}) ==
        "needs bfloat16 or float16, not Float");
  CHECK(attention_unsupported("hopper", {kGpu, at::kBFloat16, 72}) ==
        "needs a head_dim of 128, not 72");
  const auto plain = attention_cases::make_inputs({"", 28, 4, 128, {140, 3}, {160, 140}, 164}, 1e4);
  for (const bool causal : {false, true}) {
    const auto inputs = plain.to(kGpu, at::kBFloat16);
    AttentionCall call = inputs.call(causal);
    const Tensor sums = at::empty({28, 143}, call.q.options().dtype(at::kFloat)).t();
    call.log_sum_exp = sums;
    const Tensor got = hopper->forward(call);
    AttentionCall again = call;
    const Tensor wanted = at::empty_like(sums);
    again.log_sum_exp = wanted;
    const Tensor near = make_attention("math", kGpu)->forward(again);
    CHECK(attention_cases::relative_norm(got, near.to(at::kDouble).cpu()) <= 0.005);
    CHECK((sums - wanted).abs().max().item<float>() <= 1e-4F);
    const auto automatic = make_attention("auto", kGpu);
    automatic->forward(call);
    CHECK(automatic->served_by() == "hopper");
    call.bias = at::zeros({28, 140, 164}, call.q.options().dtype(at::kFloat));
    CHECK(hopper->unsupported(call) == "takes only a bias of the last key");
    call.bias = Tensor();
    call.last_key_bias = at::zeros({2}, call.q.options().dtype(at::kFloat));
    CHECK(hopper->unsupported(call).value_or("served") ==
          (causal ? "takes no bias with a causal mask" : "served"));
  }
}

TEST_CASE("hopper serves a bias of the last key, of few and of many queries") {
  if (const auto reason = hopper_unavailable(kGpu)) return test::skip(*reason);
  for (const std::int64_t queries : {2100, 3}) {
    CAPTURE(queries);
    const auto inputs =
        attention_cases::make_inputs({"", 28, 4, 128, {queries, 5}, {160, 140}, 164}, 1e4)
            .to(kGpu, at::kBFloat16);
    AttentionCall call = inputs.call(false);
    call.last_key_bias = at::tensor({4.0, 6.0}, call.q.options().dtype(at::kFloat));
    const Tensor near = make_attention("math", kGpu)->forward(call);
    AttentionCall plain = call;
    plain.last_key_bias = Tensor();
    const Tensor without = make_attention("math", kGpu)->forward(plain);
    CHECK(attention_cases::relative_norm(without, near.to(at::kDouble).cpu()) > 0.1);
    for (const Quantization quantization : {Quantization::none, Quantization::fp8}) {
      const auto automatic = make_attention("auto", kGpu, {.quantization = quantization});
      CHECK(automatic->takes_last_key_bias(kind_of(call)));
      CHECK(attention_cases::relative_norm(automatic->forward(call), near.to(at::kDouble).cpu()) <=
            0.005);
      CHECK(automatic->served_by() == "hopper");
    }
  }
  const AttentionKind kind{kGpu, at::kBFloat16, 128};
  CHECK_FALSE(make_attention("flash", kGpu)->takes_last_key_bias(kind));
  CHECK_FALSE(make_attention("sdpa", kGpu)->takes_last_key_bias(kind));
  CHECK(make_attention("sdpa", kGpu)->takes_last_key_bias({kGpu, at::kFloat, 128}));
  const auto reference = make_attention("auto", kGpu, {.kernels = KernelPolicy::reference});
  CHECK_FALSE(reference->takes_last_key_bias(kind));
}

TEST_CASE("splitkv says what it cannot serve") {
  const auto splitkv = make_attention("splitkv", kGpu);
  const auto refused = [&](const attention_cases::Case& shape, bool causal) {
    const auto inputs = attention_cases::make_inputs(shape, 0).to(kGpu, at::kBFloat16);
    return splitkv->unsupported(inputs.call(causal)).value_or("served");
  };
  CHECK(refused({"", 28, 4, 128, {16, 2}, {60, 40}, 64}, false) == "served");
  CHECK(refused({"", 28, 4, 128, {1, 1}, {60, 40}, 64}, true) == "served");
  CHECK(refused({"", 28, 4, 128, {17, 2}, {60, 40}, 64}, false) ==
        "takes at most 16 queries of a sample, not 17");
  CHECK(refused({"", 28, 4, 128, {16, 2}, {60, 40}, 64}, true) == "served");
  CHECK(refused({"", 16, 16, 72, {2}, {60}, 64}, false) ==
        "a head is not 16 bytes times a power of two up to 32");
  const auto inputs = attention_cases::make_inputs({"", 28, 4, 128, {2, 2}, {60, 40}, 64}, 0)
                          .to(kGpu, at::kBFloat16)
                          .sliced();
  AttentionCall call = inputs.call(false);
  CHECK_FALSE(splitkv->unsupported(call).has_value());
  call.v = call.v.contiguous();
  CHECK(splitkv->unsupported(call) == "keys and values have different strides");
}

TEST_CASE("splitkv gives a sample the same bits alone and beside others") {
  // The second one's keys are one part of a sum, then several.
  const attention_cases::Case shape = {"", 28, 4, 128, {3, 3, 3}, {40, 1955, 64}, 1960};
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    const auto all = attention_cases::make_inputs(shape, 0).to(kGpu, dtype);
    const attention_cases::Inputs alone = {all.q.narrow(0, 3, 3), all.k.narrow(0, 1, 1),
                                           all.v.narrow(0, 1, 1),
                                           AttentionLengths::make({3}, {1955}, 1960, kGpu)};
    const auto splitkv = make_attention("splitkv", kGpu);
    CHECK(at::equal(splitkv->forward(all.call(false)).narrow(0, 3, 3),
                    splitkv->forward(alone.call(false))));
  }
}

namespace {

const attention_cases::Case kTwoBranches = {"", 28, 4, 128, {300, 300}, {310, 302}, 320};

}  // namespace

TEST_CASE("hopper_fp8 gives what attention gives over rounded operands" *
          doctest::test_suite("needs sm90")) {
  if (const auto reason = hopper_unavailable(kGpu)) return test::skip(*reason);
  for (const attention_cases::Case& shape :
       {kTwoBranches, {"", 4, 4, 128, {130, 7}, {1700, 1}, 1728}}) {
    CAPTURE(shape.heads);
    // What lies behind the keys would spoil their scale.
    const auto plain = attention_cases::make_inputs(shape, 1e4);
    const auto inputs = plain.to(kGpu, at::kBFloat16).sliced();
    AttentionCall call = inputs.call(false);
    const Tensor sums = at::empty(call.q.sizes().slice(0, 2), at::TensorOptions(kGpu));
    call.log_sum_exp = sums;
    const auto fp8 = make_attention(kHopperFp8, kGpu);
    REQUIRE_FALSE(fp8->prepare(call).has_value());
    const Tensor got = fp8->forward(call);
    CHECK(got.sizes() == call.q.sizes());
    // Over the operands as they are rounded, what is left is the rounding of weights and output.
    const QuantizedAttention x =
        quantize_attention(call.q, call.k, call.v, inputs.lengths.k_device, KernelPolicy::strict);
    const auto scale = [&x](AttentionScale which) { return x.scales[static_cast<int>(which)]; };
    AttentionCall rounded = call;
    rounded.q = x.q.to(at::kFloat) * scale(AttentionScale::q);
    rounded.k = x.keys.to(at::kFloat) * scale(AttentionScale::keys);
    const Tensor value_scale = scale(AttentionScale::values);  // x.values are in blocks
    rounded.v = (call.v.to(at::kFloat) * value_scale.reciprocal())
                    .clamp(-448, 448)
                    .to(at::kFloat8_e4m3fn)
                    .to(at::kFloat) *
                value_scale;
    rounded.log_sum_exp = at::empty_like(sums);
    const Tensor near = make_attention("math", kGpu)->forward(rounded).cpu();
    CHECK(attention_cases::relative_norm(got, near) <= 0.045);
    CHECK((sums - rounded.log_sum_exp).abs().max().item<float>() <= 0.01F);  // sums are near 8
    AttentionCall biased = call;
    biased.last_key_bias = at::zeros({2}, at::TensorOptions(kGpu));
    CHECK(fp8->unsupported(biased) == "takes no bias");
    CHECK(attention_cases::relative_norm(got, attention_cases::reference(plain, false)) <= 0.1);
    const LinearOperand rows = fp8->forward_rows(call, Quantization::fp8);
    CHECK((rows.values.scalar_type() == at::kFloat8_e4m3fn));
    CHECK(at::equal((rows.values.to(at::kFloat) * rows.scales.unsqueeze(1)).to(at::kBFloat16),
                    got.flatten(1)));
    const LinearOperand as_they_are = fp8->forward_rows(call, Quantization::none);
    CHECK_FALSE(as_they_are.scales.defined());
    CHECK(at::equal(as_they_are.values, got.flatten(1)));
  }
}

TEST_CASE("auto attends in e4m3 to many queries beside weights in fp8" *
          doctest::test_suite("needs sm90")) {
  if (const auto reason = hopper_unavailable(kGpu)) return test::skip(*reason);
  const auto served = [](std::vector<std::int64_t> queries, Quantization quantization,
                         KernelPolicy kernels = KernelPolicy::automatic,
                         std::int64_t head_dim = 128) {
    const attention_cases::Case shape = {"",           4,   2, head_dim, std::move(queries),
                                         {2100, 2080}, 2112};
    const auto inputs = attention_cases::make_inputs(shape, 0).to(kGpu, at::kBFloat16);
    const auto backend =
        make_attention("auto", kGpu, {.kernels = kernels, .quantization = quantization});
    backend->forward_rows(inputs.call(false), quantization);
    return backend->served_by();
  };
  CHECK(served({2048, 2048}, Quantization::fp8) == kHopperFp8);
  CHECK(served({2048, 2040}, Quantization::fp8) == kHopperFp8);
  CHECK(served({2047, 2047}, Quantization::fp8) == kHopper);
  CHECK(served({2048, 2048}, Quantization::int8) == kHopper);
  const std::string other = cudnn_unavailable(kGpu) ? "flash" : "cudnn";
  CHECK(served({2048, 2048}, Quantization::fp8, KernelPolicy::reference) == other);
  CHECK(served({2048, 2048}, Quantization::fp8, KernelPolicy::automatic, 64) == other);
}

TEST_CASE("the same call gives the same bits again, with other lengths between") {
  const attention_cases::Case shape = {"", 28, 4, 128, {40, 40}, {60, 40}, 64};
  const auto inputs = attention_cases::make_inputs(shape, 0).to(kGpu, at::kBFloat16);
  auto shorter = inputs;
  shorter.lengths = AttentionLengths::make({40, 40}, {50, 41}, 64, kGpu);
  for (const AttentionInfo& info : list_attention(kGpu)) {
    if (info.unavailable) continue;
    INFO("backend: ", info.name);
    const auto backend = make_attention(info.name, kGpu);
    const Tensor first = backend->forward(inputs.call(false));
    const Tensor other = backend->forward(shorter.call(false));
    CHECK(at::equal(first, backend->forward(inputs.call(false))));
    CHECK_FALSE(at::equal(first, other));
  }
}

}  // namespace diptych
