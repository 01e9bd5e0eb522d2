// Attention in e4m3 inside the backbone: its output is the next projection's input, as it is.
#include <doctest/doctest.h>

#include "lib/attention/backends.h"
#include "lib/tensor/noise.h"
#include "tests/models/offload_cases.h"
#include "tests/support/skip.h"

namespace diptych {
namespace {

const at::Device kGpu(at::kCUDA, 0);

// What leaves the last layer of two pictures' latents.
Tensor latents(const MotBackbone& model, const AttentionBackend& attention) {
  constexpr std::int64_t kLatents = 2048, kContext = 9;
  const auto options = at::TensorOptions().device(kGpu).dtype(at::kBFloat16);
  KvCache cache(model.config.kv_shape(), 2, kContext + kLatents + 2, options);
  at::Generator generator = cpu_generator(3);
  const auto rows = [&](std::int64_t count) {
    return randn({2 * count, model.config.hidden_size}, generator).to(options);
  };
  const std::vector<MotSample> text = {{0, 0, 0, kContext}, {0, 0, 0, kContext}};
  model.forward(plan_text(text, 0, cache, model.config, options), rows(kContext), cache,
                *make_attention("math", kGpu), KernelPolicy::strict);
  for (std::int64_t i = 0; i < 2; ++i) cache.advance(i, kContext);
  const std::vector<MotSample> block = {{kContext, kContext, kLatents, 2},
                                        {kContext, kContext, kLatents, 2}};
  return model
      .forward(plan_image_block(block, 0, cache, model.config, options), rows(kLatents + 2), cache,
               attention, KernelPolicy::strict)
      .gen.to(at::kFloat);
}

}  // namespace

TEST_CASE("weights and attention in fp8 are near weights in fp8 alone" *
          doctest::test_suite("needs sm90")) {
  if (const auto reason = hopper_unavailable(kGpu)) return test::skip(*reason);
  QwenConfig config = offload_cases::small_config();
  config.hidden_size = 256;
  config.num_attention_heads = 2;
  config.num_key_value_heads = 1;
  config.head_dim = 128;
  config.intermediate_size = 512;
  const MotBackbone model =
      offload_cases::load({kGpu, at::kBFloat16, KernelPolicy::strict, Quantization::fp8}, config);
  const auto fp8 = make_attention("auto", kGpu, {.quantization = Quantization::fp8});
  const auto plain = make_attention("auto", kGpu);
  const Tensor found = latents(model, *fp8), expected = latents(model, *plain);
  CHECK(fp8->served_by() == "hopper_fp8, splitkv");
  CHECK(plain->served_by() == "hopper, splitkv");
  CHECK_FALSE(at::equal(found, expected));
  CHECK((found - expected).norm().item<double>() < 0.1 * expected.norm().item<double>());
  CHECK(at::equal(latents(model, *fp8), found));
}

}  // namespace diptych
