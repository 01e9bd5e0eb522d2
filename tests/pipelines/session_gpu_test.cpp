// What --replay and --batch-size rest on, and step caches, on the GPU.
#include <doctest/doctest.h>

#include "tests/pipelines/session_cases.h"
#include "tests/pipelines/step_cache_cases.h"

namespace diptych {
namespace {

TEST_CASE("pictures that share forwards are those of one by one") {
  test::check_sharing({"cuda", "float32"});
}

TEST_CASE("what a session did before changes no bit of what it does next") {
  test::check_repeats({"cuda", "float32"});
  test::check_repeats({"cuda", "bfloat16"});
}

TEST_CASE("a captured step makes the bits of one launched by hand") {
  test::check_step_graphs({"cuda", "float32"});
  test::check_step_graphs({"cuda", "bfloat16"});
}

TEST_CASE("a sampled plan takes as many draws as it has tokens") {
  test::check_draws_behind_a_plan({"cuda", "float32"});
  test::check_draws_behind_a_plan({"cuda", "bfloat16"});
}

TEST_CASE("quantised models paint nearly the same, and the same again") {
  test::check_quantization({"cuda", "bfloat16"});
  for (const char* kind : {"fp8", "int8"}) {
    test::check_repeats({"cuda", "bfloat16", kind});
    test::check_step_graphs({"cuda", "bfloat16", kind});
  }
}

TEST_CASE("--cfg-mode auto paints as the mode that it chooses") {
  test::check_cfg_mode_auto({"cuda", "float32"});
  test::check_cfg_mode_auto({"cuda", "bfloat16"});
}

TEST_CASE("step caches: calibrated, painted and reported") {
  test::check_step_caches({"cuda", "float32"});
  test::check_step_caches({"cuda", "bfloat16"});
}

}  // namespace
}  // namespace diptych
