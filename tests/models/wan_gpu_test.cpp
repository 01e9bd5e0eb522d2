// The Wan transformer and its vision tower on a GPU against the CPU.
#include <doctest/doctest.h>

#include "lib/attention/attention.h"
#include "lib/models/clip_vision/clip_vision.h"
#include "tests/models/wan_cases.h"

namespace diptych {
namespace {

using namespace wan_cases;  // NOLINT

const at::Device kGpu(at::kCUDA, 0);
constexpr std::int64_t kHeadDim = 128;  // that every kernel takes

// As a run of a model with such heads.
Options on_gpu(at::ScalarType dtype = at::kFloat, std::int64_t head_dim = kHeadDim) {
  Options options;
  options.device = kGpu;
  options.dtype = dtype;
  options.shared = preferred_shared_keys(*make_attention("auto", kGpu), {kGpu, dtype, head_dim});
  options.kernels = KernelPolicy::strict;
  return options;
}

// Heads and widths that every kernel takes.
WanConfig gpu_config() {
  WanConfig config = small_config();
  config.attention_head_dim = kHeadDim;
  config.image_dim = 32;
  return config;
}

// On both devices the same weights: those of the recorded checkpoint.
WanTransformer recorded(const Options& options) {
  return load(own_goldens() / "checkpoint_i2v/transformer", options);
}

}  // namespace

TEST_CASE("wan on the GPU: float32 is the CPU's, tensor by tensor") {
  const WanTransformer model = recorded({});
  const Inputs inputs = noise_inputs(model.config, {30, 5});
  const Outputs expected = run(model, inputs);
  for (const KernelPolicy policy : {KernelPolicy::strict, KernelPolicy::reference}) {
    Options options = on_gpu();
    options.kernels = policy;
    const Outputs found = run(recorded(options), inputs, options);
    CHECK(relative_norm(found.velocity, expected.velocity) < 1e-5);
    CHECK(found.seen.size() == expected.seen.size());
    for (const auto& [name, value] : expected.seen) {
      CAPTURE(name);
      CHECK(relative_norm(found.seen.at(name), value) < 1e-5);
    }
  }
}

TEST_CASE("wan on the GPU: a timestep for each row") {
  const WanTransformer model = recorded({});
  Inputs inputs = noise_inputs(model.config, {30, 5});
  inputs.timesteps = inputs.timesteps.unsqueeze(1).expand({2, 18}).contiguous();
  inputs.timesteps.narrow(1, 0, 6).zero_();
  const Options options = on_gpu();
  CHECK(relative_norm(run(recorded(options), inputs, options).velocity,
                      run(model, inputs).velocity) < 1e-5);
}

TEST_CASE("wan on the GPU: bfloat16 stays near float32") {
  const WanTransformer model = recorded({});
  const Inputs inputs = noise_inputs(model.config, {30, 5});
  const Options options = on_gpu(at::kBFloat16, model.config.attention_head_dim);
  const double found =
      relative_norm(run(recorded(options), inputs, options).velocity, run(model, inputs).velocity);
  MESSAGE("bfloat16 against float32: ", found);
  CHECK(found < 0.03);
}

TEST_CASE("wan on the GPU: blocks on the host give the same bits, quantised matrices near ones") {
  const WanConfig config = gpu_config();
  const Inputs inputs = noise_inputs(config, {30, 5});
  Options options = on_gpu(at::kBFloat16);
  const Tensor plain = run(dummy(config, options), inputs, options).velocity.cpu();
  for (const Quantization kind : {Quantization::none, Quantization::fp8, Quantization::int8}) {
    CAPTURE(name_of(kind));
    options = on_gpu(at::kBFloat16);
    options.quantization = kind;
    const Tensor expected = run(dummy(config, options), inputs, options).velocity.cpu();
    CHECK(relative_norm(expected, plain.to(at::kFloat)) < 0.1);
    for (const std::int64_t resident : {0, 2}) {
      for (const std::int64_t slots : {1, 2, 3}) {
        options.offload = BlockOffload{resident, slots};
        const WanTransformer model = dummy(config, options);
        CHECK(run(model, inputs, options).velocity.cpu().equal(expected));
        CHECK(run(model, inputs, options).velocity.cpu().equal(expected));
      }
    }
  }
}

TEST_CASE("clip vision on the GPU is the CPU's") {
  const auto folder = own_goldens() / "checkpoint_i2v/image_encoder";
  const ClipVisionConfig config = ClipVisionConfig::load(folder / "config.json");
  const Tensor pixels = read_trace(own_goldens() / "transformer/i2v_wan21/expected.safetensors")
                            .at("image.clip_pixels");
  const auto rows = [&](at::Device device) {
    const ClipVision model = ClipVision::load(Weights::open(folder, device, at::kFloat), config);
    return model.forward(pixels, *make_attention("auto", device));
  };
  CHECK(relative_norm(rows(kGpu), rows(at::kCPU)) < 1e-5);
}

}  // namespace diptych
