// Requests of all kinds through one session: together or alone, in any order, the same results.
#include <vector>

#include <doctest/doctest.h>

#include "lib/base/error.h"
#include "lib/media/png.h"
#include "lib/pipelines/pipeline.h"

namespace diptych {
namespace {

const std::filesystem::path kSource = DIPTYCH_SOURCE_DIR;

RunConfig paint(const std::string& prompt, std::uint64_t seed, std::int64_t width,
                std::int64_t height) {
  RunConfig config;
  config.model = kSource / "tests/goldens/bagel/checkpoint";
  config.device = "cpu";
  config.dtype = "float32";
  config.task = "t2i";
  config.inputs = {{prompt, {}}};
  config.sampling.seed = seed;
  config.sampling.width = width;
  config.sampling.height = height;
  config.sampling.steps = 6;
  config.sampling.cfg_img_scale = 1.5;
  return config;
}

RunConfig edit(const std::string& prompt, std::uint64_t seed) {
  RunConfig config = paint(prompt, seed, 48, 32);
  config.task = "edit";
  config.inputs.insert(config.inputs.begin(), {{}, kSource / "docs/demo.png"});
  return config;
}

RunConfig answer() {
  RunConfig config = paint("what is this?", 3, 16, 16);
  config.task = "chat";
  config.text.max_tokens = 6;
  return config;
}

struct Given {
  std::vector<Picture> pictures;  // by request
  std::string answer;
};

struct Fixture {
  Log log{LogLevel::quiet};
  Progress progress{log, ProgressStyle::none};
  std::unique_ptr<Session> session = find_session("bagel")(paint("", 0, 16, 16), log);

  Given run(const std::vector<RunConfig>& requests) {
    Given given;
    given.pictures.resize(requests.size());
    Results results;
    results.picture = [&](const Picture& picture, const Report&) {
      given.pictures.at(picture.request) = picture;
    };
    results.answer = [&](const Answer& text, const Report&) { given.answer = text.text; };
    session->run(requests, progress, results);
    return given;
  }
};

int worst_level(const Tensor& a, const Tensor& b) {
  REQUIRE(a.sizes() == b.sizes());
  return (a.to(at::kInt) - b.to(at::kInt)).abs().max().item<int>();
}

TEST_CASE("pictures that share forwards are those of one by one") {
  Fixture f;
  std::vector<RunConfig> requests = {paint("a red fox", 5, 64, 48), edit("make it blue", 6),
                                     paint("", 7, 16, 32), edit("a longer text than that", 8)};
  requests[2].negative_prompt = "dull";
  requests[3].think = true;
  requests[3].text.max_think_tokens = 4;
  for (const RunConfig& request : requests) CHECK(f.session->may_share(requests[0], request));
  const Given together = f.run(requests);
  for (std::size_t i = 0; i < requests.size(); ++i) {
    CAPTURE(i);
    const Given alone = f.run({requests[i]});
    const Picture& expected = alone.pictures.front();
    CHECK(together.pictures[i].seed == requests[i].sampling.seed);
    CHECK(together.pictures[i].noise_hash == expected.noise_hash);
    CHECK(together.pictures[i].plan == expected.plan);
    CHECK(worst_level(together.pictures[i].rgb, expected.rgb) <= 1);
    CHECK(expected.rgb.to(at::kFloat).std().item<float>() > 1);
  }
  CHECK(worst_level(together.pictures[1].rgb, f.run({edit("make it red", 6)}).pictures[0].rgb) > 1);
}

TEST_CASE("what a session did before changes no bit of what it does next") {
  const std::vector<RunConfig> requests = {edit("make it blue", 6), answer(),
                                           paint("a red fox", 5, 64, 48)};
  Fixture used;
  std::vector<Given> first;
  for (const RunConfig& request : requests) first.push_back(used.run({request}));
  for (const std::size_t i : {2, 0, 1}) {
    Fixture fresh;
    for (Fixture* f : {&used, &fresh}) {
      const Given again = f->run({requests[i]});
      CHECK(again.answer == first[i].answer);
      if (requests[i].answers()) continue;
      CHECK(again.pictures[0].rgb.equal(first[i].pictures[0].rgb));
      CHECK(again.pictures[0].latent_hash == first[i].pictures[0].latent_hash);
    }
  }
}

TEST_CASE("only equals share") {
  const Fixture f;
  const RunConfig one = paint("a", 1, 32, 32);
  const auto shares = [&](const std::function<void(RunConfig&)>& change) {
    RunConfig other = one;
    change(other);
    CHECK(f.session->may_share(one, other) == f.session->may_share(other, one));
    return f.session->may_share(one, other);
  };
  CHECK(shares([](RunConfig& c) { c.sampling.seed = 9; }));
  CHECK(shares([](RunConfig& c) { c.sampling.height = 64; }));
  CHECK_FALSE(shares([](RunConfig& c) { c.sampling.steps = 7; }));
  CHECK_FALSE(shares([](RunConfig& c) { c.sampling.cfg_text_scale = 7; }));
  CHECK_FALSE(shares([](RunConfig& c) { c.sampling.cfg_interval_low = 0; }));
  CHECK_FALSE(shares([](RunConfig& c) { c.sampling.batch_count = 2; }));
  CHECK_FALSE(shares([](RunConfig& c) { c.cache_mode = "taylorseer"; }));
  CHECK_FALSE(shares([](RunConfig& c) { c.trace = "t.safetensors"; }));
  CHECK_FALSE(shares([](RunConfig& c) { c.task = "chat"; }));
}

TEST_CASE("weights are loaded for all expected runs, whichever of them cannot be") {
  Fixture f;
  RunConfig wrong = paint("a", 1, 4096, 32);
  CHECK_THROWS_AS(f.session->check(wrong), InputError);
  const std::vector<std::vector<RunConfig>> none = {{wrong}};
  f.session->load(none, f.progress);  // nothing to load for
  CHECK(f.session->report().seconds.empty());
  const std::vector<std::vector<RunConfig>> some = {{wrong}, {paint("a", 1, 32, 32)}};
  f.session->load(some, f.progress);
  REQUIRE(f.session->report().seconds.size() == 1);
  CHECK(f.session->report().seconds[0].first == "load");
  CHECK(f.session->weights_hash().size() == 33);
  CHECK_THROWS_AS(f.run({wrong}), InputError);
  CHECK(f.run({paint("a", 1, 32, 32)}).pictures[0].rgb.defined());
}

}  // namespace
}  // namespace diptych
