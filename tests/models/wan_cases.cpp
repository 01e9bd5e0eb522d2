#include "tests/models/wan_cases.h"

#include <cstdlib>

#include <doctest/doctest.h>

#include "lib/tensor/noise.h"

namespace diptych::wan_cases {

namespace fs = std::filesystem;

fs::path own_goldens() {
  return fs::path(DIPTYCH_SOURCE_DIR) / "tests/goldens/wan";
}

fs::path full_goldens() {
  const char* named = std::getenv("DIPTYCH_GOLDENS");
  const fs::path beside = fs::path(DIPTYCH_SOURCE_DIR).parent_path() / "shared/goldens";
  const fs::path folder = (named != nullptr ? fs::path(named) : beside) / "wan";
  return fs::is_directory(folder) ? folder : fs::path();
}

WanTransformer load(const fs::path& folder, const Options& options) {
  const WanConfig config = WanConfig::load(folder / "config.json");
  const Weights weights = Weights::open(folder, options.device, options.dtype);
  WanTransformer model = WanTransformer::load(weights, config, options.offload,
                                              {options.quantization, options.kernels});
  weights.require_all_read();
  return model;
}

Outputs run(const WanTransformer& model, const Inputs& inputs, const Options& options) {
  Outputs outputs;
  const WanObserver observer = [&](std::string_view name, const Tensor& value) {
    CHECK(outputs.seen.emplace(name, value.cpu().to(at::kFloat).clone()).second);
  };
  const Tensor& latents = inputs.latents;
  const WanContext context = model.make_context(inputs.texts, options.kernels, observer);
  const WanPlan plan =
      model.plan(context, {latents.size(2), latents.size(3), latents.size(4)}, options.shared);
  const WanTime time = model.embed_time(plan, inputs.timesteps, options.kernels, observer);
  Tensor x = model.embed_latents(plan, latents.to(options.device), options.kernels, observer);
  const auto attention = make_attention(options.attention, options.device);
  x = model.run_blocks(plan, context, time, x, *attention, options.kernels, observer);
  outputs.velocity = model.head(plan, time, x, options.kernels, observer);
  return outputs;
}

WanConfig small_config() {
  WanConfig config;
  config.num_attention_heads = 2;
  config.attention_head_dim = 32;
  config.in_channels = 4;
  config.out_channels = 4;
  config.text_dim = 48;
  config.freq_dim = 32;
  config.ffn_dim = 160;
  config.num_layers = 5;
  return config;
}

WanTransformer dummy(const WanConfig& config, const Options& options) {
  return WanTransformer::load(Weights::dummy(options.device, options.dtype), config,
                              options.offload, {options.quantization, options.kernels});
}

Inputs noise_inputs(const WanConfig& config, const std::vector<std::int64_t>& lengths) {
  at::Generator generator = cpu_generator(11);
  const auto samples = static_cast<std::int64_t>(lengths.size());
  Inputs inputs;
  for (const std::int64_t length : lengths)
    inputs.texts.rows.push_back(randn({length, config.text_dim}, generator));
  if (config.image_dim) inputs.texts.image = randn({7, *config.image_dim}, generator);
  inputs.latents = randn({samples, config.in_channels, 3, 4, 6}, generator);
  inputs.timesteps = at::full({samples}, 700.0F);
  return inputs;
}

double worst(const Tensor& found, const Tensor& expected) {
  REQUIRE(found.sizes() == expected.sizes());
  return (found.cpu().to(at::kFloat) - expected.cpu()).abs().max().item<double>();
}

double relative_norm(const Tensor& found, const Tensor& expected) {
  const Tensor near = found.cpu().to(at::kFloat), far = expected.cpu().to(at::kFloat);
  return ((near - far).norm() / far.norm()).item<double>();
}

}  // namespace diptych::wan_cases
