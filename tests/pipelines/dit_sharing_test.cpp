// Requests to Wan and Cosmos that share forwards, on the small checkpoints of the full recordings.
#include <functional>

#include <doctest/doctest.h>

#include "lib/config/family_fields.h"
#include "lib/pipelines/registry.h"
#include "lib/pipelines/wan/settings.h"
#include "tests/support/skip.h"
#include "tests/verify/goldens.h"

namespace diptych {
namespace {

namespace fs = std::filesystem;

fs::path checkpoint_of(const std::string& family) {
  const fs::path folder =
      test::goldens_of(family).back() / (family == "wan" ? "checkpoint" : "checkpoint_t2i");
  return fs::exists(folder / "model_index.json") ? folder : fs::path();
}

// Of other prompts, negative prompts and seeds.
std::vector<RunConfig> requests_to(const std::string& family) {
  RunConfig config = default_options(find_family(family).config()).run;
  config.model = checkpoint_of(family);
  config.device = {DeviceChoice::Kind::cpu};
  config.dtype = DtypeChoice::float32;
  config.task = family == "wan" ? "t2v" : "t2i";
  config.makes = family == "wan" ? MediaKind::clip : MediaKind::picture;
  config.sampling.width = 48;
  config.sampling.height = 32;
  config.sampling.frames = family == "wan" ? 9 : 1;
  config.sampling.steps = 9;
  std::vector<RunConfig> requests;
  for (const char* prompt :
       {"a cat", "Snow falls on the quiet village while people walk home", "x"}) {
    config.inputs = {{prompt, {}}};
    config.sampling.seed += 7;
    config.negative_prompt = requests.size() == 1 ? "blurred, overexposed, static" : "dark";
    requests.push_back(config);
  }
  return requests;
}

class Fixture {
 public:
  explicit Fixture(const RunConfig& config) : session_(open_session(config, log_)) {}
  Session& session() { return *session_; }

  std::vector<Result> run(const std::vector<RunConfig>& requests) {
    std::vector<std::unique_ptr<Job>> jobs;
    JobGroup group;
    for (const RunConfig& request : requests) {
      jobs.push_back(session_->make_job(request));
      group.push_back(jobs.back().get());
    }
    std::vector<Result> made;
    Results results;
    results.result = [&](const Result& result, const Report&) { made.push_back(result); };
    session_->run(group, progress_, results);
    return made;
  }

 private:
  Log log_{LogLevel::quiet};
  Progress progress_{log_, ProgressStyle::none};
  std::unique_ptr<Session> session_;
};

void check_together(const std::string& family, const std::function<void(RunConfig&)>& change) {
  std::vector<RunConfig> requests = requests_to(family);
  for (RunConfig& request : requests) change(request);
  Fixture fixture(requests.front());
  for (const RunConfig& request : requests)
    CHECK(fixture.session().may_share(requests.front(), request));
  const std::vector<Result> together = fixture.run(requests);
  REQUIRE(together.size() == requests.size());
  for (std::size_t i = 0; i < requests.size(); ++i) {
    CAPTURE(i);
    const std::vector<Result> alone = fixture.run({requests[i]});
    REQUIRE(alone.size() == 1);
    const Result &got = together[i], &wanted = alone.front();
    CHECK(got.request == i);
    CHECK(got.seed == requests[i].sampling.seed);
    CHECK(got.noise_hash == wanted.noise_hash);
    CHECK(got.forwards == wanted.forwards);
    // float32's rounding over all steps: processors cut products of more rows in other ways (up to
    // 1.3e-5 seen).
    CHECK((got.latent - wanted.latent).abs().max().item<float>() <= 3e-5);
    CHECK(got.latent.std().item<float>() > 0.5);
    CHECK((got.latent - together[(i + 1) % 3].latent).abs().max().item<float>() > 0.1);
  }
}

bool lacks_recordings() {
  if (!checkpoint_of("wan").empty() && !checkpoint_of("cosmos").empty()) return false;
  test::skip("the full recordings are not here");
  return true;
}

}  // namespace

TEST_CASE("clips and pictures of a shared forward are those that are made alone" *
          doctest::test_suite("needs goldens")) {
  if (lacks_recordings()) return;
  for (const char* family : {"wan", "cosmos"}) {
    CAPTURE(family);
    for (const CfgMode mode : {CfgMode::batched, CfgMode::sequential}) {
      CAPTURE(name_of(mode));
      check_together(family, [&](RunConfig& c) { c.cfg_mode = mode; });
    }
    check_together(family, [](RunConfig& c) { c.sampling.cfg_text_scale = 1; });
    check_together(family, [](RunConfig& c) { c.cache_mode = StepCacheMode::taylorseer; });
  }
  check_together("wan", [](RunConfig& c) { c.own.get<WanSettings>().guidance_rescale = 0.7; });
  check_together("wan", [](RunConfig& c) { c.own.get<WanSettings>().cfg_gate = 0.5; });
}

TEST_CASE("only requests of one size and the same steps share forwards" *
          doctest::test_suite("needs goldens")) {
  if (lacks_recordings()) return;
  for (const char* family : {"wan", "cosmos"}) {
    CAPTURE(family);
    const RunConfig plain = requests_to(family).front();
    Fixture fixture(plain);
    const auto shares = [&](const std::function<void(RunConfig&)>& change) {
      RunConfig other = plain;
      change(other);
      return fixture.session().may_share(plain, other);
    };
    CHECK(shares([](RunConfig& c) { c.sampling.seed = 99; }));
    CHECK(shares([](RunConfig& c) { c.negative_prompt = "other"; }));
    CHECK_FALSE(shares([](RunConfig& c) { c.sampling.width = 64; }));
    CHECK_FALSE(shares([](RunConfig& c) { c.sampling.height = 64; }));
    CHECK_FALSE(shares([](RunConfig& c) { c.sampling.steps = 8; }));
    CHECK_FALSE(shares([](RunConfig& c) { c.sampling.cfg_text_scale = 3; }));
    CHECK_FALSE(shares([](RunConfig& c) { c.sampling.batch_count = 2; }));
    CHECK_FALSE(shares([](RunConfig& c) { c.trace = "a.safetensors"; }));
    CHECK_FALSE(shares([](RunConfig& c) { c.cache_mode = StepCacheMode::teacache; }));
    CHECK_FALSE(shares(
        [](RunConfig& c) { c.inputs.push_back(InputItem::of_file(MediaKind::picture, "a.png")); }));
    const bool is_clip = plain.makes == MediaKind::clip;
    CHECK(shares([](RunConfig& c) { c.sampling.frames += 4; }) == !is_clip);
    CHECK(shares([](RunConfig& c) { c.makes = MediaKind::picture; }) == !is_clip);
  }
}

}  // namespace diptych
