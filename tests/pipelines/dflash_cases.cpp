#include "tests/pipelines/dflash_cases.h"

#include <algorithm>

#include "lib/attention/attention.h"
#include "lib/pipelines/qwen3_dflash/trace_names.h"
#include "lib/tensor/trace.h"
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
  pair.drafter = BlockDrafter::load(
      open(drafter), BlockDrafterConfig::load(drafter / "config.json", pair.target.config),
      quantization);
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

Parted compare_with_target_alone(const Pair& pair, const std::vector<Ids>& prompts,
                                 const SpeculativeRequest& request) {
  SpeculativeWriter drafted(text_target(pair.target), &pair.drafter, pair.runtime);
  SpeculativeWriter alone(text_target(pair.target), nullptr, pair.runtime);
  SpeculativeRequest plain = request;
  plain.block_size = 1;
  Parted parted;
  for (const Ids& prompt : prompts) {
    const Ids ids = drafted.write(std::span(&prompt, 1), request, {}, {}).front().ids;
    const Ids expected = alone.write(std::span(&prompt, 1), plain, {}, {}).front().ids;
    ++parted.texts;
    const auto [own, other] = std::ranges::mismatch(ids, expected);
    if (own == ids.end() || other == expected.end()) {
      parted.exact += ids.size() == expected.size() ? 1 : 0;
      continue;
    }
    Ids before = prompt;
    before.insert(before.end(), ids.begin(), own);
    TraceSink sink({"prefill.logits_last"});
    SpeculativeObserver observer;
    observer.trace = [&](std::size_t) { return TextTrace(&sink, kDraftedText); };
    SpeculativeRequest next = plain;
    next.max_new_tokens = 1;
    alone.write(std::span(&before, 1), next, {}, observer);
    const Tensor scores = sink.tensors().begin()->second.flatten().to(at::kCPU, at::kDouble);
    const double regret = (scores.max() - scores[*own]).item<double>();
    parted.largest_regret = std::max(parted.largest_regret, regret);
  }
  return parted;
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
