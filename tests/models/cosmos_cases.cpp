#include "tests/models/cosmos_cases.h"

#include <cstdlib>

#include <doctest/doctest.h>

#include "lib/tensor/noise.h"

namespace diptych::cosmos_cases {

namespace fs = std::filesystem;

fs::path own_goldens() {
  return fs::path(DIPTYCH_SOURCE_DIR) / "tests/goldens/cosmos";
}

fs::path full_goldens() {
  const char* named = std::getenv("DIPTYCH_GOLDENS");
  const fs::path beside = fs::path(DIPTYCH_SOURCE_DIR).parent_path() / "shared/goldens";
  const fs::path folder = (named != nullptr ? fs::path(named) : beside) / "cosmos";
  return fs::is_directory(folder) ? folder : fs::path();
}

std::vector<Options> all_ways() {
  Options repeated;
  repeated.shared = SharedKeys::repeated;
  Options math = repeated;
  math.attention = "math";
  return {{}, repeated, math};
}

CosmosTransformer load(const fs::path& folder, const Options& options) {
  const CosmosConfig config = CosmosConfig::load(folder / "config.json");
  const Weights weights = Weights::open(folder, options.device, options.dtype);
  CosmosTransformer model = CosmosTransformer::load(weights, config, options.offload,
                                                    {options.quantization, options.kernels});
  weights.require_all_read();
  return model;
}

Outputs run(const CosmosTransformer& model, const Inputs& inputs, const Options& options) {
  Outputs outputs;
  const CosmosObserver observer = [&](std::string_view name, const Tensor& value) {
    CHECK(outputs.seen.emplace(name, value.cpu().to(at::kFloat).clone()).second);
  };
  const CosmosContext context = model.make_context(inputs.texts, options.kernels);
  const CosmosPlan plan = model.plan(context, inputs.clip, options.shared);
  const CosmosTime time = model.embed_time(plan, inputs.timesteps, options.kernels, observer);
  const Tensor latents = inputs.latents.to(options.device);
  Tensor x = model.embed_latents(plan, latents, options.kernels, observer);
  const auto attention = make_attention(options.attention, options.device);
  x = model.run_blocks(plan, context, time, x, *attention, options.kernels, observer);
  outputs.output = model.head(plan, time, x, options.kernels, observer);
  return outputs;
}

CosmosConfig small_config() {
  CosmosConfig config;
  config.num_attention_heads = 2;
  config.attention_head_dim = 32;
  config.in_channels = 5;
  config.out_channels = 4;
  config.text_embed_dim = 48;
  config.adaln_lora_dim = 16;
  config.num_layers = 5;
  return config;
}

CosmosTransformer dummy(const CosmosConfig& config, const Options& options) {
  return CosmosTransformer::load(Weights::dummy(options.device, options.dtype), config,
                                 options.offload, {options.quantization, options.kernels});
}

Inputs noise_inputs(const CosmosConfig& config, const std::vector<std::int64_t>& lengths) {
  at::Generator generator = cpu_generator(11);
  const auto samples = static_cast<std::int64_t>(lengths.size());
  Inputs inputs;
  for (const std::int64_t length : lengths)
    inputs.texts.push_back(randn({length, config.text_embed_dim}, generator));
  inputs.clip = {{3, 4, 6}, 16.0, config.takes_frames() ? 1 : 0, {}};
  inputs.latents = randn({samples, config.out_channels, 3, 4, 6}, generator);
  inputs.timesteps = at::full({samples, 3}, 0.7F);
  inputs.timesteps.select(1, 0).fill_(0.0001F);
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

}  // namespace diptych::cosmos_cases
