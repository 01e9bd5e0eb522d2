#include "tests/pipelines/text_decoder_cases.h"

#include <algorithm>
#include <stdexcept>
#include <vector>

#include <ATen/record_function.h>
#include <doctest/doctest.h>

#include "lib/pipelines/bagel/checkpoint.h"
#include "lib/pipelines/mot/text_decoder.h"
#include "lib/runtime/launches.h"
#include "lib/session/make_runtime.h"
#include "lib/tensor/noise.h"
#include "tests/pipelines/session_cases.h"

namespace diptych::test {
namespace {

using Ids = std::vector<std::int64_t>;

constexpr std::int64_t kContext = 5, kTokens = 20, kNoStop = 639;  // beyond the ids with text
constexpr std::uint64_t kSeed = 11;

struct Stopped : std::runtime_error {
  using std::runtime_error::runtime_error;
};

struct Written {
  Ids ids;
  Tensor state;  // of the generator afterwards
};

struct DecoderFixture {
  Log log{LogLevel::quiet};
  Runtime runtime;
  std::unique_ptr<BagelCheckpoint> opened;
  BagelCheckpoint& checkpoint;
  std::unique_ptr<TextDecoder> decoder;
  DecodeProgress progress = [](std::int64_t) {};

  DecoderFixture(const std::string& device, const std::string& dtype, const std::string& attention)
      : DecoderFixture(run_of(device, dtype, attention)) {}

  explicit DecoderFixture(const RunConfig& config)
      : runtime(make_runtime(config, log)),
        opened(BagelCheckpoint::open(config.model, false, runtime)),
        checkpoint(*opened) {
    checkpoint.load();
    checkpoint.load_head();
    decoder = make_text_decoder(checkpoint.model.language_model, kContext + kTokens, runtime);
  }

  static RunConfig run_of(const std::string& device, const std::string& dtype,
                          const std::string& attention) {
    RunConfig config = paint_request("", 0, 16, 16);
    config.device = parse_device(device).value();
    config.dtype = parse_choice<DtypeChoice>(dtype).value();
    config.read_attention.default_backend = attention;
    return config;
  }

  std::int64_t vocab() const { return checkpoint.model.config.llm.vocab_size; }

  DecodeStart start(const TokenSampling& sampling) const {
    DecodeStart start;
    start.token = checkpoint.bos;
    start.stop = kNoStop;
    start.position = kContext;
    start.vocab_limit = 622;
    start.max_tokens = kTokens;
    start.sampling = sampling;
    return start;
  }

  Written write(const DecodeStart& start, const LogitsFn& logits = {}) {
    fill_context();
    at::Generator generator = cpu_generator(kSeed);
    Written written;
    written.ids = decoder->decode(start, generator, progress, logits);
    written.state = generator.get_state();
    return written;
  }

 private:
  void fill_context() {
    const KvShape shape = checkpoint.model.config.llm.kv_shape();
    const auto options = at::TensorOptions().device(runtime.device).dtype(runtime.dtype);
    KvCache context(shape, 1, kContext, options);
    at::Generator generator = cpu_generator(3);
    for (std::int64_t layer = 0; layer < shape.layers; ++layer) {
      for (const Tensor& rows : {context.keys(layer), context.values(layer)})
        rows.copy_(randn(rows.sizes(), generator));
    }
    context.advance(0, kContext);
    decoder->cache().copy_row(0, context, 0, kContext);
  }
};

Tensor state_behind(std::size_t races, std::int64_t vocab) {
  at::Generator generator = cpu_generator(kSeed);
  RaceDraws draws(generator, vocab);
  for (std::size_t i = 0; i < races; ++i) draws.next();
  return generator.get_state();
}

std::vector<TokenSampling> samplings() {
  return {{}, {0.9, 0, 1}, {0.9, 20, 1}, {1.3, 50, 0.8}};
}

}  // namespace

void check_tokens(const std::string& device) {
  DecoderFixture f(device, "float32", "auto"), stepwise(device, "float32", "math");
  for (const TokenSampling& sampling : samplings()) {
    CAPTURE(sampling.temperature);
    CAPTURE(sampling.top_k);
    const bool draws = sampling.temperature > 0;
    const auto check = [&](const DecodeStart& start, const Ids& expected) {
      const Written written = f.write(start);
      CHECK(written.ids == expected);
      CHECK(written.state.equal(state_behind(draws ? expected.size() : 0, f.vocab())));
    };
    DecodeStart start = f.start(sampling);
    const Written whole = stepwise.write(start);
    REQUIRE(std::ssize(whole.ids) == kTokens);
    check(start, whole.ids);
    for (const std::int64_t most : {1, 7, 8, 9, 16, 17}) {
      CAPTURE(most);
      start.max_tokens = most;
      check(start, {whole.ids.begin(), whole.ids.begin() + most});
    }
    start.max_tokens = kTokens;
    int ends = 0;
    for (std::int64_t end = 1; end < kTokens; ++end) {
      CAPTURE(end);
      const Ids before(whole.ids.begin(), whole.ids.begin() + end);
      start.stop = whole.ids[static_cast<std::size_t>(end)];
      if (std::ranges::find(before, start.stop) != before.end()) continue;
      ++ends;
      check(start, before);
      CHECK(stepwise.write(start).state.equal(state_behind(draws ? before.size() : 0, f.vocab())));
    }
    CHECK(ends >= (draws ? 8 : 1));  // drawn ones in all places of a chunk
  }
}

void check_watching_and_stopping(const std::string& device, const std::string& dtype) {
  DecoderFixture f(device, dtype, "auto");
  for (const TokenSampling& sampling : samplings()) {
    CAPTURE(sampling.temperature);
    CAPTURE(sampling.top_k);
    DecodeStart start = f.start(sampling);
    start.graph = false;
    const Written eager = f.write(start);
    start.graph = true;
    const Written plain = f.write(start);
    CHECK(eager.ids == plain.ids);
    CHECK(eager.state.equal(plain.state));
    Ids watched;
    const Written other = f.write(start, [&](std::int64_t index, const Tensor& logits) {
      watched.push_back(index);
      CHECK(logits.size(0) == f.vocab());
    });
    CHECK(other.ids == plain.ids);
    CHECK(other.state.equal(plain.state));
    CHECK(std::ssize(watched) == kTokens);
    const DecodeProgress calm = f.progress;
    f.progress = [](std::int64_t fed) {
      if (fed >= 8) throw Stopped("stopped");
    };
    CHECK_THROWS_AS(f.write(start), Stopped);
    f.progress = calm;
    CHECK(f.write(start).ids == plain.ids);
  }
  f.progress = [](std::int64_t) { throw Stopped("stopped"); };
  CHECK_THROWS_AS(f.write(f.start({})), Stopped);
  f.decoder.reset();  // nothing runs any more that uses its tensors
  synchronize(f.runtime.device);
}

void check_launches(const std::string& device) {
  DecoderFixture f(device, "bfloat16", "auto");
  const auto calls = [&](bool graph) {
    DecodeStart start = f.start({});
    start.graph = graph;
    f.write(start);  // what is made once
    const auto launches = record_launches("decode", [&] {
      synchronize(f.runtime.device);
      RECORD_USER_SCOPE("decode");
      f.write(start);
      synchronize(f.runtime.device);
    });
    REQUIRE(launches.has_value());
    return launches->calls;
  };
  const std::int64_t by_hand = calls(false);
  CHECK(by_hand > 3 * calls(true));
}

}  // namespace diptych::test
