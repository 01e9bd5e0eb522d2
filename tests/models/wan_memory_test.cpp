#include <doctest/doctest.h>

#include "lib/models/wan/memory.h"
#include "tests/models/wan_cases.h"
#include "tests/support/peak_bytes.h"

namespace diptych {
namespace {

using namespace wan_cases;  // NOLINT

// A model whose matrices do not drown in what else it holds.
WanConfig medium_config() {
  WanConfig config = small_config();
  config.num_attention_heads = 4;
  config.ffn_dim = 512;
  return config;
}

}  // namespace

TEST_CASE("wan memory: weights of the released sizes") {
  // 14.288e9 and 1.419e9 parameters, two bytes each, and float32 where the model has that.
  WanConfig c;
  const MatrixFormat plain = {at::kBFloat16};
  const auto bytes = [&c](const MatrixFormat& format) {
    return static_cast<double>(wan_weight_bytes(c, format));
  };
  CHECK(bytes(plain) == doctest::Approx(2 * 14.288e9).epsilon(0.003));
  CHECK(bytes({at::kBFloat16, Quantization::fp8}) < 0.55 * 2 * 14.288e9);
  const BlockOffload offload = {10, 2};
  const std::int64_t block = wan_block_bytes(c, plain);
  CHECK(wan_weight_bytes(c, plain, offload) ==
        wan_weight_bytes(c, plain) - 30 * block +
            2 * WanBlock::matrix_bytes(BlockPart::step, c, plain));
  CHECK(wan_host_bytes(c, plain, offload) == 30 * block);
  CHECK(wan_host_bytes(c, plain, {}) == 0);
  c.num_attention_heads = 12;
  c.ffn_dim = 8960;
  c.num_layers = 30;
  CHECK(bytes(plain) == doctest::Approx(2 * 1.419e9).epsilon(0.005));
}

TEST_CASE("wan memory: what a load, a context and a step hold") {
  WanConfig config = medium_config();
  for (const bool image : {false, true}) {
    if (image) config.image_dim = 12;
    for (const Quantization kind : {Quantization::none, Quantization::fp8, Quantization::int8}) {
      CAPTURE(image);
      CAPTURE(name_of(kind));
      Options options;
      options.quantization = kind;
      const MatrixFormat format = {at::kFloat, kind};
      WanTransformer model;
      const std::int64_t weights = peak_bytes([&] { model = dummy(config, options); });
      const std::int64_t planned_weights = wan_weight_bytes(config, format);
      CHECK(weights >= planned_weights);
      CHECK(weights < planned_weights * 3 / 2);

      Inputs inputs = noise_inputs(config, {30, 5});
      inputs.latents = at::ones({2, config.in_channels, 5, 16, 24});
      const Kernels kernels;
      const WanContext context = model.make_context(inputs.texts, kernels);
      WanForwardSizes sizes = {.latent = {5, 16, 24}, .samples = 2, .text_keys = 31};
      sizes.image_keys = image ? 7 : 0;
      sizes.reference = true;
      std::int64_t kept = 0;
      for (const Tensor& rows : context.text) kept += static_cast<std::int64_t>(rows.nbytes());
      for (const Tensor& rows : context.image) kept += static_cast<std::int64_t>(rows.nbytes());
      CHECK(kept == wan_context_bytes(config, sizes, at::kFloat));

      const auto attention = make_attention("sdpa", at::kCPU);
      const std::int64_t found = peak_bytes([&] {
        const WanPlan plan = model.plan(context, sizes.latent, sizes.shared);
        const WanTime time = model.embed_time(plan, inputs.timesteps, kernels);
        Tensor x = model.embed_latents(plan, inputs.latents, kernels);
        x = model.run_blocks(plan, context, time, x, *attention, kernels);
        model.head(plan, time, x, kernels);
      });
      const std::int64_t planned = wan_step_bytes(config, sizes, format);
      MESSAGE("found ", found, ", planned ", planned);
      CHECK(found <= planned);
      CHECK(found > planned / 2);
    }
  }
}

TEST_CASE("wan memory: a step of the released size") {
  // 75600 rows of 5120 bfloat16 are 774 MB: x, the rows normed, queries, keys and values of a block
  // or the wide rows of its network.
  const WanForwardSizes sizes = {
      .latent = {21, 90, 160}, .text_keys = 100, .shared = SharedKeys::repeated};
  const std::int64_t bytes = wan_step_bytes({}, sizes, {at::kBFloat16});
  CHECK(bytes > 4 * std::int64_t{774'144'000});
  CHECK(bytes < 6 * std::int64_t{774'144'000});
}

}  // namespace diptych
