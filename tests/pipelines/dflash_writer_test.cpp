// Texts of Qwen3 with a DFlash drafter. A wrong drafter never shows in the text, which the target
// verifies; it shows in what is accepted, so lists of that are compared exactly.
#include <algorithm>
#include <map>

#include <doctest/doctest.h>
#include <fmt/format.h>

#include "lib/pipelines/qwen3_dflash/trace_names.h"
#include "lib/session/result.h"
#include "lib/tensor/finite.h"
#include "tests/pipelines/dflash_cases.h"

namespace diptych {
namespace {

using namespace dflash_cases;  // NOLINT
using Json = nlohmann::json;

constexpr std::array kAcceptanceCases = {"acceptance_b16", "acceptance_b8"};

SpeculativeText write_one(SpeculativeWriter& writer, const Ids& prompt,
                          const SpeculativeRequest& request,
                          const SpeculativeObserver& observer = {}) {
  return writer.write(std::span(&prompt, 1), request, {}, observer).front();
}

std::vector<Ids> prompts_of(const Json& description) {
  std::vector<Ids> prompts;
  for (const Json& prompt : description["prompts"]) prompts.push_back(prompt["input_ids"]);
  return prompts;
}

// Greedy, of the first prompts of a case.
std::vector<SpeculativeText> write_first(const Pair& pair, const Json& description,
                                         std::size_t count, std::int64_t block) {
  SpeculativeWriter writer(text_target(pair.target), &pair.drafter, pair.runtime);
  SpeculativeRequest request = request_of(description["prompts"][0]);
  request.block_size = block;
  std::vector<SpeculativeText> texts;
  const std::vector<Ids> prompts = prompts_of(description);
  for (std::size_t i = 0; i < count; ++i) texts.push_back(write_one(writer, prompts[i], request));
  return texts;
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

TEST_CASE("dflash: ids and acceptance are those of the official code") {
  for (const char* name : kAcceptanceCases) {
    const Json description = own_case(name);
    const Pair pair = own_pair(name);
    SpeculativeWriter writer(text_target(pair.target), &pair.drafter, pair.runtime);
    std::size_t seen = 0;
    for (const Json& prompt : description["prompts"]) {
      INFO(name, " ", prompt["key"].dump());
      const SpeculativeText text = write_one(writer, prompt["input_ids"], request_of(prompt));
      CHECK(text.ids == prompt["new_ids"].get<Ids>());
      CHECK(text.acceptance == prompt["acceptance_lengths"].get<Ids>());
      CHECK_FALSE(text.switched_off);
      const bool stopped = text.ids.back() == 562;
      CHECK(text.finish_reason == (stopped ? kFinishedItself : kFinishedByLimit));
      ++seen;
    }
    CHECK(seen == 16);
  }
}

TEST_CASE("dflash: a defect of the drafter shows in what is accepted, never in a text") {
  struct Defect {
    const char* what;
    void (*put)(BlockDrafter& drafter);
    double most;  // mean acceptance; without a defect it is 11.95
  };
  const std::array defects = {
      Defect{"another mask", [](BlockDrafter& d) { d.config.mask_token_id = 587; }, 1.5},
      Defect{"another rope_theta", [](BlockDrafter& d) { d.config.decoder.rope_theta = 1e4; }, 2},
      Defect{"features of other layers",
             [](BlockDrafter& d) {
               d.config.target_layer_ids = {1, 2, 3};
             },
             4},
      Defect{"no weight of k_norm",
             [](BlockDrafter& d) {
               for (QwenLayer& layer : d.decoder.layers) layer.k_norm = at::ones_like(layer.k_norm);
             },
             11},
  };
  const Json description = own_case("acceptance_b16");
  for (const Defect& defect : defects) {
    Pair pair = own_pair("acceptance_b16");
    defect.put(pair.drafter);
    const std::vector<SpeculativeText> texts = write_first(pair, description, 6, 16);
    for (std::size_t i = 0; i < texts.size(); ++i)
      CHECK(texts[i].ids == description["prompts"][i]["new_ids"].get<Ids>());
    INFO(defect.what, ": ", mean_acceptance(texts));
    CHECK(mean_acceptance(texts) < defect.most);
  }
}

TEST_CASE("dflash: every attention of the CPU accepts the same") {
  const Json description = own_case("acceptance_b16");
  for (const char* attention : {"math", "sdpa"}) {
    const Pair pair = own_pair("acceptance_b16", {.attention = attention});
    SpeculativeWriter writer(text_target(pair.target), &pair.drafter, pair.runtime);
    for (std::size_t i = 0; i < 4; ++i) {
      const Json& prompt = description["prompts"][i];
      const SpeculativeText text = write_one(writer, prompt["input_ids"], request_of(prompt));
      CHECK(text.acceptance == prompt["acceptance_lengths"].get<Ids>());
    }
  }
}

TEST_CASE("dflash: several prompts at once give the texts and acceptance of one at a time") {
  for (const char* name : kAcceptanceCases) {
    const Json description = own_case(name);
    const Pair pair = own_pair(name);
    SpeculativeWriter writer(text_target(pair.target), &pair.drafter, pair.runtime);
    const std::vector<Ids> prompts = prompts_of(description);
    std::vector<Ids> streamed(prompts.size());
    const SpeculativeObserver observer{[&](std::size_t prompt, std::span<const std::int64_t> ids) {
                                         CHECK_FALSE(ids.empty());
                                         streamed[prompt].insert(streamed[prompt].end(),
                                                                 ids.begin(), ids.end());
                                         return true;
                                       },
                                       {}};
    const std::vector<SpeculativeText> texts =
        writer.write(prompts, request_of(description["prompts"][0]), {}, observer);
    REQUIRE(texts.size() == prompts.size());
    for (std::size_t i = 0; i < texts.size(); ++i) {
      INFO(name, " ", i);
      const Json& prompt = description["prompts"][i];
      CHECK(texts[i].ids == prompt["new_ids"].get<Ids>());
      CHECK(texts[i].acceptance == prompt["acceptance_lengths"].get<Ids>());
      CHECK(streamed[i] == texts[i].ids);
    }
  }
}

TEST_CASE("dflash: no block size changes a text, and none is the target alone") {
  const Json description = own_case("acceptance_b16");
  const Pair pair = own_pair("acceptance_b16");
  const std::vector<SpeculativeText> alone = write_first(pair, description, 3, 1);
  for (const std::int64_t block : {0, 2, 5, 16, 24}) {
    const std::vector<SpeculativeText> texts = write_first(pair, description, 3, block);
    for (std::size_t i = 0; i < texts.size(); ++i) CHECK(texts[i].ids == alone[i].ids);
  }
  SpeculativeWriter writer(text_target(pair.target), nullptr, pair.runtime);
  const Json& prompt = description["prompts"][0];
  SpeculativeRequest request = request_of(prompt);
  request.block_size = 0;
  const SpeculativeText text = write_one(writer, prompt["input_ids"], request);
  CHECK(text.ids == alone[0].ids);
  CHECK(std::ranges::all_of(text.acceptance, [](std::int64_t length) { return length == 1; }));
}

TEST_CASE("dflash: where bfloat16 parts a text from the target's, little is lost") {
  const Json description = own_case("acceptance_b16");
  const SpeculativeRequest request = request_of(description["prompts"][0]);
  std::vector<Ids> prompts = prompts_of(description);
  const Parted rounded = compare_with_target_alone(
      own_pair("acceptance_b16", {.dtype = at::kBFloat16}), prompts, request);
  INFO(rounded.exact, " of ", rounded.texts, " are exact, regret ", rounded.largest_regret);
  CHECK(rounded.texts == prompts.size());
  CHECK(rounded.largest_regret <= 0.2);
  CHECK(2 * rounded.exact >= rounded.texts);
  prompts.resize(2);
  CHECK(compare_with_target_alone(own_pair("acceptance_b16"), prompts, request).exact == 2);
}

TEST_CASE("dflash: what is forced is what every block of drafts gives, of one text or several") {
  const Json description = own_case("acceptance_b16");
  const Pair pair = own_pair("acceptance_b16");
  SpeculativeWriter writer(text_target(pair.target), &pair.drafter, pair.runtime);
  const std::vector<Ids> all = prompts_of(description);
  const std::vector<Ids> prompts(all.begin(), all.begin() + 2);
  SpeculativeRequest request = request_of(description["prompts"][0]);
  request.stop_ids.clear();
  request.max_new_tokens = 31;
  for (const std::int64_t forced : {1, 6, 16}) {
    request.forced_acceptance = forced;
    for (const SpeculativeText& text : writer.write(prompts, request, {}, {})) {
      CHECK(text.ids.size() == 31);
      // The prefill gives one; the last block makes one more than is allowed (DecidedText::ended).
      CHECK(text.acceptance == Ids(static_cast<std::size_t>((31 + forced - 1) / forced), forced));
    }
  }
  // Of rows without drafts nothing is forced, and what is accepted comes back.
  request.block_size = 1;
  CHECK(write_one(writer, prompts[0], request).acceptance == Ids(31, 1));
  request.block_size = 0;
  request.forced_acceptance = 0;
  SpeculativeWriter unforced(text_target(pair.target), &pair.drafter, pair.runtime);
  CHECK(write_one(writer, prompts[0], request).ids == write_one(unforced, prompts[0], request).ids);
}

TEST_CASE("dflash: an observer that refuses ends its prompt, and only that one") {
  const Json description = own_case("acceptance_b16");
  const Pair pair = own_pair("acceptance_b16");
  SpeculativeWriter writer(text_target(pair.target), &pair.drafter, pair.runtime);
  const std::vector<Ids> all = prompts_of(description);
  const std::vector<Ids> prompts(all.begin(), all.begin() + 3);
  std::map<std::size_t, int> calls;
  const SpeculativeObserver observer{
      [&](std::size_t prompt, std::span<const std::int64_t>) {
        return ++calls[prompt] < (prompt == 0 ? 1 : prompt == 1 ? 2 : 1000);
      },
      {}};
  const auto texts = writer.write(prompts, request_of(description["prompts"][0]), {}, observer);
  CHECK(texts[0].ids.size() == 1);  // refused behind the prefill
  CHECK(texts[0].acceptance.empty());
  CHECK(texts[0].finish_reason == kFinishedItself);
  CHECK(texts[1].acceptance.size() == 1);
  CHECK(texts[1].finish_reason == kFinishedItself);
  CHECK(texts[2].ids == description["prompts"][2]["new_ids"].get<Ids>());
}

TEST_CASE("dflash: ids beyond the vocabulary's limit are not chosen") {
  const Json description = own_case("acceptance_b16");
  const Pair pair = own_pair("acceptance_b16");
  SpeculativeWriter writer(text_target(pair.target), &pair.drafter, pair.runtime);
  SpeculativeRequest request = request_of(description["prompts"][0]);
  request.vocab_limit = 300;
  request.max_new_tokens = 40;
  const SpeculativeText text = write_one(writer, description["prompts"][0]["input_ids"], request);
  CHECK(text.ids.size() == 40);
  CHECK(std::ranges::max(text.ids) < 300);
}

TEST_CASE("dflash: sampled texts come from their seed, alone or beside others") {
  const Json description = own_case("acceptance_b8");
  const Pair pair = own_pair("acceptance_b8");
  SpeculativeWriter writer(text_target(pair.target), &pair.drafter, pair.runtime);
  const std::vector<Ids> all = prompts_of(description);
  const std::vector<Ids> prompts(all.begin(), all.begin() + 3);
  SpeculativeRequest request = request_of(description["prompts"][0]);
  request.max_new_tokens = 24;
  const std::vector<std::uint64_t> seeds = {3, 4, 5};
  for (const TokenSampling& sampling : {TokenSampling{1.4, 0, 1}, TokenSampling{1.4, 20, 0.95}}) {
    request.sampling = sampling;
    const auto texts = writer.write(prompts, request, seeded_noise(seeds, 608), {});
    for (std::size_t i = 0; i < prompts.size(); ++i) {
      const auto alone = writer.write(std::span(&prompts[i], 1), request,
                                      seeded_noise(std::span(&seeds[i], 1), 608), {});
      CHECK(alone.front().ids == texts[i].ids);
      CHECK(alone.front().acceptance == texts[i].acceptance);
    }
  }
}

TEST_CASE("dflash: a drafter that may be switched off does not change a text") {
  const Json description = own_case("acceptance_b16");
  const Pair pair = own_pair("acceptance_b16");
  SpeculativeWriter writer(text_target(pair.target), &pair.drafter, pair.runtime);
  SpeculativeRequest request = request_of(description["prompts"][0]);
  request.stop_ids.clear();
  request.max_new_tokens = 200;
  const Ids prompt = description["prompts"][0]["input_ids"];
  const SpeculativeText text = write_one(writer, prompt, request);
  request.may_switch_off = true;
  CHECK(write_one(writer, prompt, request).ids == text.ids);
  // A trace goes through plain steps and drafts alike.
  TraceSink sink({"dflash.*", "*.ctx_norm"});
  const SpeculativeObserver traced{{}, [&](std::size_t) { return TextTrace(&sink, kDraftedText); }};
  const SpeculativeText seen = write_one(writer, prompt, request, traced);
  CHECK(seen.ids == text.ids);
  std::int64_t rows = 0;
  for (const auto& [name, value] : sink.tensors()) {
    if (name.ends_with(".ctx_norm")) rows += value.size(0);
    if (name == "dflash.block_ids") CHECK(value.size(0) == std::ssize(seen.acceptance));
  }
  CHECK(rows >= std::ssize(prompt));
}

TEST_CASE("dflash: a long prompt that enters in pieces gives the text of one that enters whole") {
  const Pair pair = own_pair("acceptance_b16");
  SpeculativeWriter writer(text_target(pair.target), &pair.drafter, pair.runtime);
  const Ids chat = own_case("acceptance_b16")["prompts"][0]["input_ids"];
  Ids prompt;
  while (prompt.size() < 4200) prompt.insert(prompt.end(), chat.begin(), chat.end());
  SpeculativeRequest request;
  request.max_new_tokens = 12;
  const SpeculativeText pieces = write_one(writer, prompt, request);
  TraceSink sink({"prefill.context_feature"});
  const SpeculativeObserver traced{{}, [&](std::size_t) { return TextTrace(&sink, kDraftedText); }};
  const SpeculativeText whole = write_one(writer, prompt, request, traced);
  CHECK(sink.tensors().at(0).second.size(0) == static_cast<std::int64_t>(prompt.size()));
  CHECK(pieces.ids == whole.ids);
  CHECK(pieces.acceptance == whole.acceptance);
}

TEST_CASE("dflash: in bfloat16, fp8 and int8 drafts are accepted nearly as often") {
  const Json description = own_case("acceptance_b16");
  const double expected =
      mean_acceptance(write_first(own_pair("acceptance_b16"), description, 8, 16));
  for (const Quantization quantization :
       {Quantization::none, Quantization::fp8, Quantization::int8}) {
    const Pair pair =
        own_pair("acceptance_b16", {.dtype = at::kBFloat16, .quantization = quantization});
    const double found = mean_acceptance(write_first(pair, description, 8, 16));
    INFO(static_cast<int>(quantization), ": ", found, ", float32: ", expected);
    CHECK(found > 0.8 * expected);
  }
}

TEST_CASE("dflash: logits that are not finite are an error") {
  const Json description = own_case("acceptance_b16");
  Pair pair = own_pair("acceptance_b16");
  pair.target.lm_head = pair.target.lm_head.clone();
  pair.target.lm_head.fill_(std::numeric_limits<float>::quiet_NaN());
  SpeculativeWriter writer(text_target(pair.target), &pair.drafter, pair.runtime);
  const Json& prompt = description["prompts"][0];
  CHECK_THROWS_AS(write_one(writer, prompt["input_ids"], request_of(prompt)), NotFinite);
}

}  // namespace diptych
