// Texts of BAGEL that a drafter drafts. What it drafts must not show in a text; what is accepted
// shows that it was asked at the right places.
#include "lib/pipelines/mot/drafted_text.h"

#include <algorithm>

#include <doctest/doctest.h>

#include "lib/pipelines/bagel/checkpoint.h"
#include "lib/pipelines/bagel/job.h"
#include "lib/pipelines/mot/text.h"
#include "lib/session/make_runtime.h"
#include "lib/session/result.h"
#include "lib/tensor/noise.h"
#include "tests/pipelines/session_cases.h"

namespace diptych {
namespace {

using Ids = std::vector<std::int64_t>;

constexpr std::int64_t kTokens = 40, kBlock = 5, kMask = 638, kNoStop = 639;
constexpr std::uint64_t kSeed = 11;

struct Written {
  Ids fed, acceptance;
  Tensor state;  // of the generator afterwards
};

struct Fixture {
  Log log{LogLevel::quiet};
  Progress progress{log, ProgressStyle::none};
  Runtime runtime;
  std::unique_ptr<BagelCheckpoint> opened;
  BagelCheckpoint& checkpoint;
  BlockDrafter drafter;

  Fixture() : Fixture(run_of()) {}
  explicit Fixture(const RunConfig& config)
      : runtime(make_runtime(config, log)),
        opened(BagelCheckpoint::open(config.model, false, runtime)),
        checkpoint(*opened) {
    checkpoint.load();
    checkpoint.load_head();
    checkpoint.load_vision();
    BlockDrafterConfig sizes;
    sizes.decoder = checkpoint.model.config.llm;
    sizes.decoder.num_hidden_layers = 2;
    sizes.decoder.attention_bias = false;
    sizes.block_size = kBlock;
    sizes.mask_token_id = kMask;
    sizes.num_target_layers = checkpoint.model.config.llm.num_hidden_layers;
    sizes.target_layer_ids = {0, sizes.num_target_layers - 1};
    drafter = BlockDrafter::load(Weights::dummy(at::kCPU, at::kFloat), sizes);
  }

  static RunConfig run_of() {
    RunConfig config = test::paint_request("", 0, 16, 16);
    config.device = {DeviceChoice::Kind::cpu};
    config.dtype = DtypeChoice::float32;
    return config;
  }

  DecodeStart start(const MotContext& context, const TokenSampling& sampling) const {
    DecodeStart start;
    start.token = checkpoint.bos;
    start.stop = kNoStop;
    start.position = context.position();
    start.vocab_limit = 622;
    start.max_tokens = kTokens;
    start.sampling = sampling;
    return start;
  }

  // What is read before a text: with pictures, whose rows share a position.
  std::vector<RunConfig> requests() const {
    RunConfig plan = test::edit_request("make it darker", 1);
    plan.think = true;
    RunConfig text = test::paint_request("a fox under an oak", 1, 16, 16);
    text.think = true;
    return {text, plan};
  }

  PrefilledContexts read(BagelTurn& turn, const ContextObserver& observer) const {
    ContextsRequest request;
    request.branches = turn.branches;
    request.branches.resize(1);
    request.own_rows = {0};
    request.observer = observer;
    request.read_image = [&](std::int64_t, const ImageSegment& segment, const MotSample& block,
                             const std::string& name) {
      return turn.read_image(segment, block, name, nullptr);
    };
    return PrefilledContexts::read(checkpoint.mot(), request, runtime);
  }

  Written plain(const PrefilledContexts& contexts, const DecodeStart& start) const {
    const auto decoder = make_text_decoder(checkpoint.model.language_model,
                                           contexts.cache().length(0) + kTokens, runtime);
    decoder->cache().copy_row(0, contexts.cache(), 0, contexts.cache().length(0));
    at::Generator generator = cpu_generator(kSeed);
    const Ids fed = decoder->decode(start, generator, [](std::int64_t) {}, {});
    return {fed, {}, generator.get_state()};
  }

  // Whatever the block, every slot of it has this token.
  void draft_always(std::int64_t token) {
    const MotBackbone& backbone = checkpoint.model.language_model;
    for (QwenLayer& layer : drafter.decoder.layers) {
      layer.o_proj.values.zero_();
      layer.down_proj.values.zero_();
    }
    const Tensor mask = backbone.embed_tokens[kMask];
    const Tensor normed = mask / mask.square().mean().add(1e-6).sqrt();
    drafter.decoder.norm = backbone.lm_head[token] / normed;
  }
};

// Each text of a sampling, drafted in blocks of several sizes, ended where it may end.
void check_texts(Fixture& f, DraftedDecoder& decoder, const RunConfig& request,
                 const TokenSampling& sampling) {
  BagelJob job(request, f.checkpoint, f.runtime, f.log, {});
  job.read_inputs();
  BagelTurn turn(job);
  const MotContext context = turn.branches.front().samples.front();
  const bool draws = sampling.temperature > 0;
  const auto check = [&](DraftedStart start) {
    turn.seed(kSeed);
    const PrefilledContexts contexts = f.read(turn, decoder.watch(context.length(), start));
    const Written expected = f.plain(contexts, start.decode);
    at::Generator generator = cpu_generator(kSeed);
    const DraftedTokens tokens =
        decoder.decode(contexts.cache(), 0, start, generator, [](std::int64_t) {});
    CHECK(tokens.fed == expected.fed);
    CHECK(generator.get_state().equal(expected.state));
    return expected.fed;
  };
  for (const std::int64_t block : {0, 2, 8}) {
    CAPTURE(block);
    DraftedStart start{f.start(context, sampling), block};
    const Ids whole = check(start);
    REQUIRE(std::ssize(whole) == kTokens);
    for (const std::int64_t most : {2, 3, 9}) {
      start.decode.max_tokens = most;
      check(start);
    }
    start.decode.max_tokens = kTokens;
    const std::int64_t last = draws ? 7 : 3;
    for (std::int64_t end = 1; end < last; ++end) {
      start.decode.stop = whole[static_cast<std::size_t>(end)];
      check(start);
    }
  }
}

}  // namespace

TEST_CASE("drafted or not, BAGEL writes the same text and leaves as many draws") {
  Fixture f;
  DraftedDecoder decoder(f.checkpoint.model.language_model, f.drafter, f.runtime);
  for (const RunConfig& request : f.requests()) {
    CAPTURE(request.task);
    for (const TokenSampling& sampling : {TokenSampling{}, TokenSampling{0.9, 20, 1}})
      check_texts(f, decoder, request, sampling);
  }
}

TEST_CASE("right drafts are accepted") {
  Fixture f;
  const BagelJob job(f.requests().front(), f.checkpoint, f.runtime, f.log, {});
  BagelTurn turn(job);
  turn.seed(kSeed);
  const MotContext context = turn.branches.front().samples.front();
  const DecodeStart decode = f.start(context, {});
  const Ids fed = f.plain(f.read(turn, {}), decode).fed;
  const std::int64_t drafted = *std::ranges::max_element(
      fed.begin() + 1, fed.end(), {}, [&](std::int64_t id) { return std::ranges::count(fed, id); });
  f.draft_always(drafted);
  DraftedDecoder decoder(f.checkpoint.model.language_model, f.drafter, f.runtime);
  const DraftedStart start{decode, 0};
  const PrefilledContexts contexts = f.read(turn, decoder.watch(context.length(), start));
  at::Generator generator = cpu_generator(kSeed);
  const DraftedTokens tokens =
      decoder.decode(contexts.cache(), 0, start, generator, [](std::int64_t) {});
  CHECK(tokens.fed == fed);
  // The last block may give more than is known here.
  Ids expected;
  for (std::size_t known = 0; known < fed.size();) {
    std::size_t given = 1;
    while (given < kBlock && known + given < fed.size() && fed[known + given] == drafted) ++given;
    expected.push_back(static_cast<std::int64_t>(given));
    known += given;
  }
  REQUIRE(tokens.acceptance.size() == expected.size());
  CHECK(std::ranges::max(expected) > 1);
  CHECK(std::equal(expected.begin(), expected.end() - 1, tokens.acceptance.begin()));
}

TEST_CASE("a drafter's context is what the layers gave for every row that was read") {
  Fixture f;
  BagelJob job(f.requests().back(), f.checkpoint, f.runtime, f.log, {});
  job.read_inputs();
  BagelTurn turn(job);
  turn.seed(kSeed);
  const std::int64_t length = turn.branches.front().samples.front().length();
  std::int64_t next = 0, shown = 0;
  f.read(turn, [&](std::int64_t first, std::int64_t rows) -> MotObserver {
    CHECK(first == next);
    next += rows;
    return [&shown, rows](std::string_view what, const MotRows& seen) {
      if (what != "layer00.hidden") return;
      CHECK(in_token_order(seen).size(0) == rows);
      shown += rows;
    };
  });
  CHECK(next == length);
  CHECK(shown == length);
}

}  // namespace diptych
