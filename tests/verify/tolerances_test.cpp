#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include "lib/base/error.h"
#include "lib/verify/trace_compare.h"

namespace {

using namespace diptych;
using nlohmann::json;

// Groups of a made-up family.
constexpr TraceGroups kGroups[] = {{"step*.v_*", {}},
                                   {"step*", {"steps"}},
                                   {"*.decoded*", {"picture", "end"}},
                                   {"?.*", {"inside"}}};
constexpr TraceNames kNames = {{}, {}, {}, kGroups};

double floats(const Tolerances& tolerances, std::string_view name) {
  return tolerances.for_tensor(name, TensorKind::floating);
}

double bytes(const Tolerances& tolerances, std::string_view name) {
  return tolerances.for_tensor(name, TensorKind::bytes);
}

TEST_CASE("a group that matches the name counts, else one that the family lists") {
  const json block = {{"suggested",
                       {{"steps", 3e-5},
                        {"end", 4e-5},
                        {"step*.v_cond", 2e-5},
                        {"kv.*", 5e-5},
                        {"kv.cond.*", 6e-5},
                        {"inside", 7e-5}}},
                      {"suggested_overall", 1.0},
                      {"image_uint8_max_abs", 2}};
  const auto tolerances = Tolerances::from_case({{"tolerance", block}}, kNames);
  CHECK(floats(tolerances, "step000.v_cond") == 2e-5);
  CHECK(floats(tolerances, "step000.hidden") == 3e-5);
  CHECK(floats(tolerances, "step000.v_other") == 1.0);  // listed without a group
  CHECK(floats(tolerances, "vae.decoded.1") == 4e-5);   // the case has no group `picture`
  CHECK(floats(tolerances, "kv.other.key") == 5e-5);
  CHECK(floats(tolerances, "kv.cond.key") == 6e-5);  // the longer glob
  CHECK(floats(tolerances, "0.hidden") == 7e-5);
  CHECK(floats(tolerances, "anything.else") == 1.0);
  CHECK(bytes(tolerances, "0.picture") == 2);
  CHECK(tolerances.for_tensor("step000.hidden", TensorKind::whole) == 0);
  const auto without = Tolerances::from_case({{"tolerance", block}}, {});
  CHECK(floats(without, "step000.v_cond") == 2e-5);
  CHECK(floats(without, "step000.hidden") == 1.0);
}

TEST_CASE("without an overall tolerance the largest group counts") {
  const auto tolerances =
      Tolerances::from_case({{"tolerance", {{"suggested", {{"a", 0.25}, {"b", 0.5}}}}}}, {});
  CHECK(floats(tolerances, "c") == 0.5);
}

// As the recordings of Lance have it.
TEST_CASE("groups with measured and allowed differences") {
  const json block = {
      {"note", "measured = max abs difference; use allowed"},
      {"groups",
       {{"kv.cond.layer*.key", {{"measured", 2.7e-6}, {"max_abs", 3.6}, {"allowed", 4.3e-5}}},
        {"step*.v_guided", {{"measured", 0.0}, {"max_abs", 1.0}, {"allowed", 2e-6}}},
        {"step*.v_guided_raw", {{"measured", 0.0}, {"max_abs", 1.0}, {"allowed", 3e-6}}}}}};
  const auto tolerances = Tolerances::from_case({{"tolerance", block}}, {});
  CHECK(floats(tolerances, "kv.cond.layer02.key") == 4.3e-5);
  CHECK(floats(tolerances, "step003.v_guided") == 2e-6);
  CHECK(floats(tolerances, "step003.v_guided_raw") == 3e-6);
  CHECK(bytes(tolerances, "output.frames_u8") == 0);
}

// As the recordings of Wan, Cosmos and DFlash have it.
TEST_CASE("groups among remarks in words") {
  constexpr TraceGroups kSteps[] = {{"step*", {"step_tensors"}}, {"vae.*", {"video"}}};
  const json block = {{"schedule", "timesteps exact, sigmas 1e-6"},
                      {"step_tensors", 1e-4},
                      {"video", 2e-4},
                      {"ids", "exact"},
                      {"measured", {{"video", 1e-5}}}};
  const auto tolerances = Tolerances::from_case({{"tolerance", block}}, {{}, {}, {}, kSteps});
  CHECK(floats(tolerances, "step000.cond.block00.hidden") == 1e-4);
  CHECK(floats(tolerances, "vae.decoded") == 2e-4);
  CHECK(floats(tolerances, "ids") == 0);
  CHECK(floats(tolerances, "final.latent") == 2e-4);
  CHECK(floats(Tolerances::from_case({{"tolerance", "exact"}}, {}), "final.latent") == 0);
}

TEST_CASE("groups of so many units in the last place are judged by their norm") {
  static constexpr TraceGroups kLevels[] = {{"*.sigmas*", {"sigmas"}},
                                            {"*.timesteps", {"timesteps", "sigmas"}}};
  const auto tolerances_of = [&](const json& block) {
    return Tolerances::from_case({{"tolerance", block}}, {{}, {}, {}, kLevels});
  };
  auto wan = tolerances_of({{"timesteps", "exact"}, {"sigmas", "1 ulp of F32"}});
  CHECK(wan.relative_norm_for("a.sigmas_f64") == 0x1p-23);
  CHECK(!wan.relative_norm_for("a.timesteps"));
  CHECK(floats(wan, "a.timesteps") == 0);
  CHECK(!wan.relative_norm_for("a.other"));
  wan.set("*", 1e-3);
  CHECK(!wan.relative_norm_for("a.sigmas"));
  CHECK(floats(wan, "a.sigmas") == 1e-3);
  const auto cosmos = tolerances_of({{"sigmas", "2 ulp of F32"}});
  CHECK(cosmos.relative_norm_for("a.timesteps") == 0x1p-22);
  CHECK(!tolerances_of({{"sigmas", "two ulp of F32"}}).relative_norm_for("a.sigmas"));
}

TEST_CASE("a picture judged by its mean, without a tolerance of the decoder, may differ anywhere") {
  const auto tolerances =
      Tolerances::from_case({{"tolerance", {{"image_uint8_mean_abs", 0.5}}}}, {});
  CHECK(bytes(tolerances, "image.uint8") == 255);
  CHECK(tolerances.image_mean_abs() == 0.5);
}

TEST_CASE("other forms of the tolerance block") {
  const auto pixels =
      Tolerances::from_case({{"tolerance", {{"uint8_max_abs", 0}, {"float_max_abs", 1.2e-7}}}}, {});
  CHECK(floats(pixels, "tiny.0.vae_tensor") == 1.2e-7);
  CHECK(bytes(pixels, "image.uint8") == 0);
  CHECK(floats(Tolerances::from_case(json::object(), {}), "step000.latent") == 0);
  const json bad[] = {json::array(),
                      {{"tolerance", 1}},
                      {{"tolerance", {{"suggested", 1}}}},
                      {{"tolerance", {{"suggested", {{"kv", "small"}}}}}},
                      {{"tolerance", {{"suggested", {{"kv", -1}}}}}},
                      {{"tolerance", {{"suggested_overall", nullptr}}}},
                      {{"tolerance", {{"groups", {{"kv", 1e-5}}}}}},
                      {{"tolerance", {{"groups", {{"kv", {{"measured", 1e-5}}}}}}}},
                      {{"tolerance", {{"video", -1}}}},
                      {{"tolerance", {{"video", nullptr}}}}};
  for (const json& description : bad)
    CHECK_THROWS_AS(Tolerances::from_case(description, {}), InputError);
}

TEST_CASE("globs take precedence, the last one first") {
  auto tolerances = Tolerances::uniform(1e-3);
  CHECK(floats(tolerances, "step000.latent") == 1e-3);
  CHECK(bytes(tolerances, "image.uint8") == 1);
  CHECK(bytes(Tolerances::uniform(2), "image.uint8") == 2);
  CHECK(bytes(Tolerances::uniform(0), "image.uint8") == 0);
  tolerances.set("step*", 1e-2);
  tolerances.set("*.latent", 5);
  tolerances.set("image*", 9);
  CHECK(floats(tolerances, "step000.latent") == 5);
  CHECK(floats(tolerances, "step000.v_cond") == 1e-2);
  CHECK(floats(tolerances, "vae.decoded") == 1e-3);
  CHECK(bytes(tolerances, "image.uint8") == 9);
}

}  // namespace
