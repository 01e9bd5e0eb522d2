// Texts of Qwen3 with a DFlash drafter on a GPU, held against the recordings of the CPU.
#include <doctest/doctest.h>

#include "tests/pipelines/dflash_cases.h"

namespace diptych {
namespace {

using namespace dflash_cases;  // NOLINT
using Json = nlohmann::json;

constexpr const char* kCase = "acceptance_b16";
const at::Device kGpu(at::kCUDA, 0);

std::vector<Ids> first_prompts(const Json& description, std::size_t count) {
  std::vector<Ids> prompts;
  for (std::size_t i = 0; i < count; ++i) prompts.push_back(description["prompts"][i]["input_ids"]);
  return prompts;
}

std::vector<SpeculativeText> write(const Pair& pair, const std::vector<Ids>& prompts,
                                   const SpeculativeRequest& request, const NoiseRows& noise = {}) {
  return SpeculativeWriter(pair.target, &pair.drafter, pair.runtime)
      .write(prompts, request, noise, {});
}

double mean_acceptance(const std::vector<SpeculativeText>& texts) {
  double sum = 0, blocks = 0;
  for (const SpeculativeText& text : texts) {
    for (const std::int64_t length : text.acceptance) sum += static_cast<double>(length);
    blocks += static_cast<double>(text.acceptance.size());
  }
  return sum / blocks;
}

}  // namespace

TEST_CASE("dflash on a GPU: float32 accepts what the official code accepts on the CPU") {
  const Json description = own_case(kCase);
  const Pair pair = own_pair(kCase, {.device = kGpu});
  const std::vector<Ids> prompts = first_prompts(description, 16);
  const SpeculativeRequest request = request_of(description["prompts"][0]);
  const auto together = write(pair, prompts, request);
  for (std::size_t i = 0; i < prompts.size(); ++i) {
    const Json& prompt = description["prompts"][i];
    const SpeculativeText alone = write(pair, {prompts[i]}, request_of(prompt)).front();
    for (const SpeculativeText& text : {alone, together[i]}) {
      CHECK(text.ids == prompt["new_ids"].get<Ids>());
      CHECK(text.acceptance == prompt["acceptance_lengths"].get<Ids>());
    }
  }
}

TEST_CASE("dflash on a GPU: tokens are drawn as on the CPU") {
  const Json description = own_case(kCase);
  SpeculativeRequest request = request_of(description["prompts"][0]);
  request.max_new_tokens = 24;
  request.sampling = {1.2, 0, 1};
  const std::vector<Ids> prompts = first_prompts(description, 3);
  const std::vector<std::uint64_t> seeds = {1, 2, 3};
  const auto on = [&](at::Device device) {
    return write(own_pair(kCase, {.device = device}), prompts, request, seeded_noise(seeds, 608));
  };
  const auto gpu = on(kGpu), cpu = on(at::kCPU);
  for (std::size_t i = 0; i < prompts.size(); ++i) {
    CHECK(gpu[i].ids == cpu[i].ids);
    CHECK(gpu[i].acceptance == cpu[i].acceptance);
  }
}

TEST_CASE("dflash on a GPU: in bfloat16, fp8 and int8 drafts are accepted nearly as often") {
  const Json description = own_case(kCase);
  const std::vector<Ids> prompts = first_prompts(description, 8);
  const SpeculativeRequest request = request_of(description["prompts"][0]);
  const double expected = mean_acceptance(write(own_pair(kCase), prompts, request));
  for (const Quantization quantization :
       {Quantization::none, Quantization::fp8, Quantization::int8}) {
    if (quantization == Quantization::fp8 && !multiplies_fp8(kGpu)) continue;
    const Options options{.device = kGpu, .dtype = at::kBFloat16, .quantization = quantization};
    const double found = mean_acceptance(write(own_pair(kCase, options), prompts, request));
    INFO(static_cast<int>(quantization), ": ", found, ", float32 on the CPU: ", expected);
    CHECK(found > 0.8 * expected);
  }
}

}  // namespace diptych
