// The recorded cases of the Cosmos-Predict2 transformer, a small random model, and runs of both.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "lib/models/cosmos/cosmos.h"
#include "lib/verify/trace_compare.h"

namespace diptych::cosmos_cases {

// Where the checkpoints are: in the repository, and in the full recordings, whose folder is empty
// where there are none.
std::filesystem::path own_goldens();
std::filesystem::path full_goldens();

struct Options {
  at::Device device{at::kCPU};
  at::ScalarType dtype = at::kFloat;
  std::string attention = "auto";
  SharedKeys shared = SharedKeys::weighted;
  Kernels kernels{};
  Quantization quantization = Quantization::none;
  std::optional<BlockOffload> offload{};
};
// Weighted keys, and repeated ones by each backend of the CPU.
std::vector<Options> all_ways();

// `folder`: of a transformer in a checkpoint.
CosmosTransformer load(const std::filesystem::path& folder, const Options& options = {});

struct Inputs {
  std::vector<Tensor> texts;
  CosmosClip clip;
  Tensor latents;    // [samples, channels, frames, height, width]
  Tensor timesteps;  // float32 [samples] or [samples, frames]
};
struct Outputs {
  Tensor output;
  NamedTensors seen;  // what the observer was shown, copied
};
// One step, made and planned from the beginning.
Outputs run(const CosmosTransformer& model, const Inputs& inputs, const Options& options = {});

// A model of five blocks that may be given frames.
CosmosConfig small_config();
CosmosTransformer dummy(const CosmosConfig& config, const Options& options = {});
// Samples with texts of these lengths, of three latent frames, the first of which is given.
Inputs noise_inputs(const CosmosConfig& config, const std::vector<std::int64_t>& lengths);

double worst(const Tensor& found, const Tensor& expected);
double relative_norm(const Tensor& found, const Tensor& expected);

}  // namespace diptych::cosmos_cases
