// Texts of Qwen3 with a DFlash drafter on a GPU, held against the recordings of the CPU.
#include <algorithm>

#include <doctest/doctest.h>

#include "lib/attention/kv_cache.h"
#include "lib/pipelines/drafting/block_attention.h"
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
  return SpeculativeWriter(text_target(pair.target), &pair.drafter, pair.runtime)
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

TEST_CASE("dflash on a GPU: where bfloat16 parts a text from the target's, little is lost") {
  const Json description = own_case(kCase);
  const Pair pair = own_pair(kCase, {.device = kGpu, .dtype = at::kBFloat16});
  const Parted parted = compare_with_target_alone(pair, first_prompts(description, 16),
                                                  request_of(description["prompts"][0]));
  MESSAGE(parted.exact, " of ", parted.texts, " texts are exact; the largest regret is ",
          parted.largest_regret, " nat");
  CHECK(parted.largest_regret <= 0.2);
  CHECK(2 * parted.exact >= parted.texts);
}

namespace {

constexpr std::array kDtypes = {at::kFloat, at::kBFloat16};

// Texts of one writer, so that a later request may find what an earlier one has captured.
class Texts {
 public:
  explicit Texts(const Pair& pair)
      : writer_(text_target(pair.target), &pair.drafter, pair.runtime) {}
  std::vector<SpeculativeText> write(const std::vector<Ids>& prompts, SpeculativeRequest request,
                                     bool graphs, const SpeculativeObserver& observer = {}) {
    request.graphs = graphs;
    const std::vector<std::uint64_t> seeds = {11, 12, 13};
    const NoiseRows noise =
        request.sampling.temperature > 0 ? seeded_noise(seeds, 608) : NoiseRows();
    return writer_.write(prompts, request, noise, observer);
  }

 private:
  SpeculativeWriter writer_;
};

void check_equal(const std::vector<SpeculativeText>& a, const std::vector<SpeculativeText>& b) {
  REQUIRE(a.size() == b.size());
  for (std::size_t i = 0; i < a.size(); ++i) {
    CHECK(a[i].ids == b[i].ids);
    CHECK(a[i].acceptance == b[i].acceptance);
    CHECK(a[i].finish_reason == b[i].finish_reason);
  }
}

}  // namespace

TEST_CASE("dflash on a GPU: who gets graphs") {
  const auto why = [](const Options& options, std::int64_t width) {
    const Pair pair = own_pair(kCase, options);
    return why_not_on_device(pair.target.config, &pair.drafter.config.decoder, pair.runtime, width)
        .value_or("");
  };
  for (const at::ScalarType dtype : kDtypes) {
    for (const std::int64_t width : {1, 8, 16})
      CHECK(why({.device = kGpu, .dtype = dtype}, width).empty());
    CHECK(why({.device = kGpu, .dtype = dtype, .attention = "math"}, 1) ==
          "attention math was asked for");
    CHECK(why({.device = kGpu, .dtype = dtype, .kernels = KernelPolicy::reference}, 1) ==
          "--kernels reference");
  }
  CHECK(why({.device = kGpu, .dtype = at::kBFloat16}, 24).empty());
  CHECK(why({.device = kGpu, .dtype = at::kFloat}, 24).find("flash") != std::string::npos);
}

// A bound that is frozen in a graph shows where a text is longer than when it was captured.
TEST_CASE("dflash on a GPU: captured texts of 2000 tokens are those of single launches") {
  const Json description = own_case(kCase);
  const std::vector<Ids> prompts = first_prompts(description, 2);
  for (const at::ScalarType dtype : kDtypes) {
    const Pair pair = own_pair(kCase, {.device = kGpu, .dtype = dtype});
    Texts captured(pair), launched(pair);
    SpeculativeRequest request;
    request.max_new_tokens = 2000;
    for (const std::int64_t block : {1, 16}) {
      INFO(c10::toString(dtype), ", block ", block);
      request.block_size = block;
      const auto expected = launched.write({prompts[0]}, request, false);
      CHECK(expected[0].ids.size() == 2000);
      check_equal(captured.write({prompts[0]}, request, true), expected);
    }
  }
}

TEST_CASE("dflash on a GPU: later requests find graphs that hold for them") {
  const Json description = own_case(kCase);
  const std::vector<Ids> prompts = first_prompts(description, 3);
  for (const at::ScalarType dtype : kDtypes) {
    const Pair pair = own_pair(kCase, {.device = kGpu, .dtype = dtype});
    Texts captured(pair);
    SpeculativeRequest request = request_of(description["prompts"][0]);
    // Shorter, longer than the cache of the first, with other blocks, alone and together, with and
    // without a stop, sampled.
    const auto check = [&](const std::vector<Ids>& of) {
      check_equal(captured.write(of, request, true), Texts(pair).write(of, request, false));
    };
    for (const std::int64_t length : {120, 30, 400, 64}) {
      request.max_new_tokens = length;
      for (const std::int64_t block : {16, 1, 5}) {
        INFO(c10::toString(dtype), ", ", length, " tokens, block ", block);
        request.block_size = block;
        check({prompts[static_cast<std::size_t>(length) % 3]});
        check(prompts);
      }
    }
    request.max_new_tokens = 40;
    for (const TokenSampling& sampling : {TokenSampling{1.2, 0, 1}, TokenSampling{1.2, 20, 0.9}}) {
      request.sampling = sampling;
      for (const std::int64_t block : {1, 16}) {
        request.block_size = block;
        check({prompts[1]});
        check(prompts);
      }
    }
  }
}

TEST_CASE("dflash on a GPU: a text may fill the cache to its end") {
  const Json description = own_case(kCase);
  const std::vector<Ids> prompts = first_prompts(description, 1);
  const Pair pair = own_pair(kCase, {.device = kGpu});
  for (const std::int64_t block : {1, 16}) {
    SpeculativeRequest request;
    request.block_size = block;
    request.max_new_tokens = 256 - std::ssize(prompts[0]) - block;
    CHECK(KvCache::rounded_capacity(256) == 256);
    const auto captured = Texts(pair).write(prompts, request, true);
    CHECK(std::ssize(captured[0].ids) == request.max_new_tokens);
    check_equal(captured, Texts(pair).write(prompts, request, false));
  }
}

// Tokens are launched before the host has looked at those before them.
TEST_CASE("dflash on a GPU: what is launched ahead of an end is never seen") {
  const Json description = own_case(kCase);
  const std::vector<Ids> prompts = first_prompts(description, 1);
  const Pair pair = own_pair(kCase, {.device = kGpu});
  SpeculativeRequest request;
  request.block_size = 1;
  request.max_new_tokens = 60;
  Texts texts(pair);
  const Ids all = texts.write(prompts, request, false)[0].ids;
  for (const std::size_t seen : {1, 2, 8, 9, 10, 17, 40}) {
    INFO(seen);
    Ids streamed;
    const SpeculativeObserver observer{[&](std::size_t, std::span<const std::int64_t> ids) {
                                         streamed.insert(streamed.end(), ids.begin(), ids.end());
                                         return streamed.size() < seen;
                                       },
                                       {}};
    const SpeculativeText refused = texts.write(prompts, request, true, observer)[0];
    const Ids expected(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(seen));
    CHECK(refused.ids == expected);
    CHECK(streamed == expected);
    CHECK(refused.acceptance.size() == seen - 1);
    // A stop id of the same place, where it is the first of its kind.
    const auto place = all.begin() + static_cast<std::ptrdiff_t>(seen) - 1;
    if (std::find(all.begin(), place, *place) != place) continue;
    SpeculativeRequest stopping = request;
    stopping.stop_ids = {*place};
    check_equal(texts.write(prompts, stopping, true), texts.write(prompts, stopping, false));
    CHECK(texts.write(prompts, stopping, true)[0].ids == expected);
  }
  for (const std::int64_t length : {1, 7, 8, 9, 16}) {
    request.max_new_tokens = length;
    check_equal(texts.write(prompts, request, true), texts.write(prompts, request, false));
  }
}

TEST_CASE("dflash on a GPU: a drafter that may be switched off does not change a captured text") {
  const Json description = own_case(kCase);
  const std::vector<Ids> prompts = first_prompts(description, 1);
  const Pair pair = own_pair(kCase, {.device = kGpu});
  SpeculativeRequest request;
  request.max_new_tokens = 300;
  Texts texts(pair);
  const Ids expected = texts.write(prompts, request, false)[0].ids;
  request.may_switch_off = true;
  for (int time = 0; time < 3; ++time)
    CHECK(texts.write(prompts, request, true)[0].ids == expected);
}

}  // namespace diptych
