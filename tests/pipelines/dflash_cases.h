// The recorded pair of a target and its drafters, and the cases that were recorded of it.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "lib/pipelines/drafting/speculative_writer.h"
#include "lib/pipelines/qwen3_dflash/target.h"

namespace diptych::dflash_cases {

using Ids = std::vector<std::int64_t>;

struct Options {
  at::Device device{at::kCPU};
  at::ScalarType dtype = at::kFloat;
  std::string attention = "auto";
  Quantization quantization = Quantization::none;
  KernelPolicy kernels = KernelPolicy::automatic;
};
Runtime make_runtime(const Options& options);

// A target and a drafter of a case.
struct Pair {
  Runtime runtime;
  Qwen3 target;
  BlockDrafter drafter;
};
// `goldens`: a folder with checkpoints and cases.
Pair load_pair(const std::filesystem::path& goldens, const nlohmann::json& description,
               const Options& options = {});

SpeculativeRequest request_of(const nlohmann::json& prompt);

// Greedy texts in a dtype that rounds may part from those of the target alone, where two tokens are
// nearly as likely.
struct Parted {
  std::size_t texts = 0, exact = 0;
  double largest_regret = 0;  // nats: of a parted token against the likeliest one there
};
Parted compare_with_target_alone(const Pair& pair, const std::vector<Ids>& prompts,
                                 const SpeculativeRequest& request);

// The folder in the repository, and with it the full recordings where they are.
std::vector<std::filesystem::path> goldens();
nlohmann::json own_case(const std::string& name);  // of the first of them
Pair own_pair(const std::string& case_name, const Options& options = {});

}  // namespace diptych::dflash_cases
