// The recorded cases of the Wan transformer, a small random model, and runs of both.
#pragma once

#include <filesystem>
#include <map>
#include <string>

#include "lib/models/wan/wan.h"
#include "lib/verify/trace_compare.h"

namespace diptych::wan_cases {

// Where the checkpoints are: some of them in the repository, all of them in the full recordings,
// which are undefined (empty) where there are none.
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

// `folder`: of a transformer in a checkpoint.
WanTransformer load(const std::filesystem::path& folder, const Options& options = {});

struct Inputs {
  WanTexts texts;
  Tensor latents;    // [samples, channels, frames, height, width]
  Tensor timesteps;  // float32 [samples] or [samples, rows]
};
struct Outputs {
  Tensor velocity;
  NamedTensors seen;  // what the observer was shown, copied
};
// One step, made and planned from the beginning.
Outputs run(const WanTransformer& model, const Inputs& inputs, const Options& options = {});

// A model of three blocks with every part that a released one has but image rows.
WanConfig small_config();
WanTransformer dummy(const WanConfig& config, const Options& options = {});
// Two samples with texts of these lengths.
Inputs noise_inputs(const WanConfig& config, const std::vector<std::int64_t>& lengths);

double worst(const Tensor& found, const Tensor& expected);
double relative_norm(const Tensor& found, const Tensor& expected);

}  // namespace diptych::wan_cases
