// Requests of all kinds through one session: together or alone, in any order, the same results.
#include <vector>

#include <doctest/doctest.h>

#include "lib/base/error.h"
#include "tests/pipelines/session_cases.h"

namespace diptych {
namespace {

using test::paint_request;
constexpr test::SessionPlace kCpu = {"cpu", "float32"};

TEST_CASE("pictures that share forwards are those of one by one") {
  test::check_sharing(kCpu);
}

TEST_CASE("what a session did before changes no bit of what it does next") {
  test::check_repeats(kCpu);
}

TEST_CASE("a step on the device makes the bits of one that is looked at") {
  test::check_step_graphs({"cpu", "float32"});
  test::check_step_graphs({"cpu", "bfloat16"});
}

TEST_CASE("what a run keeps for the next changes no bit of it") {
  test::check_kept_steps(kCpu);
  test::check_kept_steps({"cpu", "bfloat16"});
}

TEST_CASE("a sampled plan takes as many draws as it has tokens") {
  test::check_draws_behind_a_plan(kCpu);
}

TEST_CASE("quantised models paint nearly the same, and the same again") {
  test::check_quantization({"cpu", "float32"});
  test::check_quantization({"cpu", "bfloat16"});
  test::check_repeats({"cpu", "float32", "int8"});
}

TEST_CASE("launched by hand and not, a step of many rows makes the same bits") {
  test::check_step_graphs_of_many_rows(kCpu);
}

TEST_CASE("--cfg-mode auto paints as the mode that it chooses") {
  test::check_cfg_mode_auto(kCpu);
}

TEST_CASE("all steps are timed by one of each kind, which changes no picture") {
  test::check_timed_steps(kCpu);
}

TEST_CASE("what steps have to do, and their products alone") {
  test::check_measured_steps(kCpu);
  test::check_measured_steps({"cpu", "bfloat16"});
}

TEST_CASE("only equals share") {
  const test::SessionFixture f(kCpu);
  const RunConfig one = paint_request("a", 1, 32, 32);
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
  CHECK_FALSE(shares([](RunConfig& c) { c.cache_mode = StepCacheMode::taylorseer; }));
  CHECK_FALSE(shares([](RunConfig& c) { c.trace = "t.safetensors"; }));
  CHECK_FALSE(shares([](RunConfig& c) { c.makes = MediaKind::text; }));
}

TEST_CASE("what writes text is loaded for requests that do") {
  test::SessionFixture f(kCpu);
  const Tensor alone = f.run({paint_request("a", 1, 32, 32)}).pictures[0].rgb();
  test::SessionFixture other(kCpu);
  const std::string answer = other.run({test::answer_request()}).answer;
  CHECK_FALSE(answer.empty());
  // Later than the rest, too.
  CHECK(f.run({test::answer_request()}).answer == answer);
  CHECK(f.run({paint_request("a", 1, 32, 32)}).pictures[0].rgb().equal(alone));
}

TEST_CASE("weights are loaded for all expected runs, whichever of them cannot be") {
  test::SessionFixture f(kCpu);
  RunConfig wrong = paint_request("a", 1, 4096, 32);
  CHECK_THROWS_AS(f.session->make_job(wrong), InputError);
  f.load({{wrong}});  // nothing to load for
  CHECK(f.session->report().seconds.empty());
  f.load({{wrong}, {paint_request("a", 1, 32, 32)}});
  REQUIRE(f.session->report().seconds.size() == 1);
  CHECK(f.session->report().seconds[0].first == "load");
  CHECK(f.session->weights_hash().size() == 33);
  CHECK_THROWS_AS(f.run({wrong}), InputError);
  CHECK(f.run({paint_request("a", 1, 32, 32)}).pictures[0].rgb().defined());
}

}  // namespace
}  // namespace diptych
