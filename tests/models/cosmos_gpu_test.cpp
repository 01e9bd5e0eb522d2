// The Cosmos-Predict2 transformer on the GPU: the CPU's values, in every dtype and format, and the
// released width in the planned memory.
#include <doctest/doctest.h>

#include "lib/models/cosmos/layout.h"
#include "lib/models/cosmos/memory.h"
#include "lib/runtime/runtime.h"
#include "lib/tensor/safetensors.h"
#include "tests/models/cosmos_cases.h"
#include "tests/support/folder.h"
#include "tests/support/peak_bytes.h"

namespace diptych {
namespace {

using namespace cosmos_cases;  // NOLINT

// As a run resolves it: exact float32, no TF32.
at::Device gpu() {
  Log log(LogLevel::quiet);
  return resolve_device({DeviceChoice::Kind::numbered, 0}, log);
}

// Heads that every backend of attention takes.
CosmosConfig config_of_heads() {
  CosmosConfig config = small_config();
  config.attention_head_dim = 128;
  return config;
}

// The same random weights for the CPU and the GPU.
class Checkpoint {
 public:
  explicit Checkpoint(const CosmosConfig& config) : config_(config) {
    const Weights random = Weights::dummy(at::kCPU, at::kFloat);
    std::vector<std::pair<std::string, Tensor>> tensors;
    for (const TensorShape& tensor : cosmos_layout(config))
      tensors.emplace_back(tensor.name, random.get(tensor.name, tensor.shape));
    write_safetensors(folder_ / "model.safetensors", tensors);
  }
  Tensor output(const Inputs& inputs, const Options& options) const {
    const Weights weights =
        Weights::open(folder_ / "model.safetensors", options.device, options.dtype);
    const CosmosTransformer model = CosmosTransformer::load(
        weights, config_, options.offload, {options.quantization, options.kernels});
    return run(model, inputs, options).output.cpu();
  }

 private:
  CosmosConfig config_;
  test::Folder folder_;
};

Options on_gpu(at::ScalarType dtype) {
  Options options;
  options.device = gpu();
  options.dtype = dtype;
  options.kernels = KernelPolicy::strict;
  options.shared = SharedKeys::repeated;
  return options;
}

}  // namespace

TEST_CASE("cosmos on the GPU gives the CPU's output") {
  const Checkpoint checkpoint(config_of_heads());
  const Inputs inputs = noise_inputs(config_of_heads(), {30, 5});
  const Tensor expected = checkpoint.output(inputs, {});
  Options options = on_gpu(at::kFloat);
  for (const char* attention : {"math", "sdpa", "auto"}) {
    CAPTURE(attention);
    options.attention = attention;
    CHECK(relative_norm(checkpoint.output(inputs, options), expected) < 1e-5);
  }
  options.attention = "math";
  options.shared = SharedKeys::weighted;
  CHECK(relative_norm(checkpoint.output(inputs, options), expected) < 1e-5);
}

TEST_CASE("cosmos in bfloat16: every usable attention backend serves it") {
  const Checkpoint checkpoint(config_of_heads());
  const Inputs inputs = noise_inputs(config_of_heads(), {30, 5});
  const Tensor expected = checkpoint.output(inputs, {});
  Options narrow;
  narrow.dtype = at::kBFloat16;
  const double plain = relative_norm(checkpoint.output(inputs, narrow), expected);
  Options options = on_gpu(at::kBFloat16);
  for (const AttentionInfo& info : list_attention(gpu())) {
    if (info.unavailable) continue;
    CAPTURE(info.name);
    options.attention = info.name;
    CHECK(relative_norm(checkpoint.output(inputs, options), expected) < 2 * plain);
  }
}

TEST_CASE("cosmos on the GPU: quantised matrices, and blocks on the host") {
  const Checkpoint checkpoint(config_of_heads());
  const Inputs inputs = noise_inputs(config_of_heads(), {30, 5});
  for (const Quantization kind : {Quantization::none, Quantization::fp8, Quantization::int8}) {
    Options cpu;
    cpu.dtype = at::kBFloat16;
    cpu.quantization = kind;
    const Tensor expected = checkpoint.output(inputs, cpu);
    Options options = on_gpu(at::kBFloat16);
    options.quantization = kind;
    const Tensor found = checkpoint.output(inputs, options);
    CHECK(relative_norm(found, expected) < 0.05);
    for (const std::int64_t slots : {1, 2, 3}) {
      options.offload = BlockOffload{2, slots};
      CHECK(checkpoint.output(inputs, options).equal(found));
    }
  }
}

TEST_CASE("cosmos: the released width on the GPU takes the planned memory") {
  CosmosConfig config;
  config.in_channels = 17;
  config.num_layers = 2;
  for (const Quantization kind : {Quantization::none, Quantization::fp8, Quantization::int8}) {
    Options options = on_gpu(at::kBFloat16);
    options.quantization = kind;
    const CosmosTransformer model = dummy(config, options);
    const CosmosLatentSize size = {4, 60, 104};
    const auto attention = make_attention("auto", options.device);
    const CosmosContext context = model.make_context({at::ones({40, 1024})}, options.kernels);
    const CosmosPlan plan = model.plan(context, {size, 16.0, 1, {}}, options.shared);
    Tensor times = at::full({1, 4}, 0.5F);
    times[0][0] = 0.0001F;
    const Tensor latents = at::ones({1, 16, 4, 60, 104}, model.options());
    Tensor output;
    const auto step = [&] {
      const CosmosTime time = model.embed_time(plan, times, options.kernels);
      Tensor x = model.embed_latents(plan, latents, options.kernels);
      x = model.run_blocks(plan, context, time, x, *attention, options.kernels);
      output = model.head(plan, time, x, options.kernels);
    };
    step();  // what is built once
    const std::int64_t found = peak_bytes(step);
    const std::int64_t planned = cosmos_forward_bytes(
        config, {size, 1, 2, context.capacity(), options.shared}, {at::kBFloat16, kind});
    CAPTURE(found);
    CAPTURE(planned);
    CHECK(static_cast<double>(found) < 1.1 * static_cast<double>(planned));
    CHECK(static_cast<double>(found) > 0.8 * static_cast<double>(planned));
    CHECK(output.isfinite().all().item<bool>());
  }
}

}  // namespace diptych
