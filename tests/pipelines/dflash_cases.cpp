#include "tests/pipelines/dflash_cases.h"

#include "lib/attention/attention.h"
#include "tests/verify/goldens.h"

namespace diptych::dflash_cases {

namespace fs = std::filesystem;
using Json = nlohmann::json;

Runtime make_runtime(const Options& options) {
  Runtime runtime;
  runtime.device = options.device;
  runtime.dtype = options.dtype;
  runtime.quantization = options.quantization;
  runtime.kernels = options.kernels;
  runtime.read_attention = StageBackends(make_attention(options.attention, options.device));
  return runtime;
}

Pair load_pair(const fs::path& goldens, const Json& description, const Options& options) {
  const fs::path checkpoint = goldens / std::string(description["checkpoint"]);
  const fs::path target = checkpoint / std::string(description["target"]);
  const fs::path drafter = checkpoint / std::string(description["drafter"]);
  const MatrixQuantization quantization{options.quantization};
  const auto open = [&](const fs::path& folder) {
    return Weights::open(folder, options.device, options.dtype);
  };
  Pair pair;
  pair.runtime = make_runtime(options);
  pair.target = Qwen3::load(open(target), Qwen3Config::load(target / "config.json"), quantization);
  pair.drafter = DflashDrafter::load(
      open(drafter), DflashConfig::load(drafter / "config.json", pair.target.config), quantization);
  return pair;
}

SpeculativeRequest request_of(const Json& prompt) {
  SpeculativeRequest request;
  request.max_new_tokens = prompt["max_new_tokens"];
  request.block_size = prompt["block_size"];
  request.sampling.temperature = prompt["temperature"];
  if (!prompt["stop_token_ids"].is_null()) request.stop_ids = prompt["stop_token_ids"].get<Ids>();
  return request;
}

std::vector<fs::path> goldens() {
  return test::goldens_of("dflash");
}

Json own_case(const std::string& name) {
  return test::case_json(goldens().front() / "cases" / name);
}

Pair own_pair(const std::string& case_name, const Options& options) {
  return load_pair(goldens().front(), own_case(case_name), options);
}

}  // namespace diptych::dflash_cases
