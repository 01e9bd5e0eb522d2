// Recorded values: golden cases of Cosmos-Predict2, run with diffusers (tests/goldens/cosmos).
#include <doctest/doctest.h>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "lib/models/cosmos/frames.h"
#include "lib/sampling/preconditioning.h"
#include "tests/models/cosmos_cases.h"
#include "tests/support/skip.h"
#include "tests/verify/goldens.h"

namespace diptych {
namespace {

namespace fs = std::filesystem;
using namespace cosmos_cases;  // NOLINT

// A recorded case, run from its noise to its last latent.
class Case {
 public:
  explicit Case(const fs::path& folder)
      : json_(test::case_json(folder)),
        inputs_(read_trace(folder / "inputs.safetensors")),
        expected_(read_trace(folder / "expected.safetensors")) {}

  std::string checkpoint() const { return json_["checkpoint"]; }
  const NamedTensors& expected() const { return expected_; }
  double tolerance(const std::string& name) const {
    return json_["tolerance"][name.starts_with("final") ? "final_latent" : "step_tensors"];
  }

  // The largest. The last step's velocity is (x - x0) / 0.002, which makes 500 times the rounding
  // of two latents of it, and moves nothing: its product with sigma is compared.
  double difference(const std::string& name, const Tensor& found, const Tensor& value) const {
    const std::int64_t steps = expected_.at("schedule.timesteps").size(0);
    if (name != fmt::format("step{:03}.velocity", steps - 1)) return worst(found, value);
    const Tensor sigma = expected_.at("schedule.sigmas")[steps - 1];
    return worst(found * sigma, value * sigma);
  }

  // Every tensor of the steps under the names of the recording.
  NamedTensors run(const CosmosTransformer& model, const Options& options) const {
    NamedTensors trace;
    const Tensor sigmas = expected_.at("schedule.sigmas");
    Tensor x = inputs_.at("initial_noise") * 80;
    for (std::int64_t i = 0; i + 1 < sigmas.size(0); ++i)
      x = step(i, x, sigmas[i].item<float>(), sigmas[i + 1].item<float>(), model, options, trace);
    trace.emplace("final.latent", x);
    return trace;
  }

 private:
  bool guided() const { return json_["parameters"]["guidance_scale"] > 1.0; }
  bool batched() const { return json_["parameters"]["use_batched_cfg"]; }
  std::int64_t known() const {
    const auto found = expected_.find("cond.indicator");
    return found == expected_.end() ? 0 : found->second.sum().item<std::int64_t>();
  }
  Tensor known_frames(const Tensor& x) const {
    return known() == 0 ? x : with_known_frames(x, expected_.at("cond.latents"), known());
  }
  Tensor text(const char* branch) const {
    return expected_.at(fmt::format("text.{}prompt_embeds_valid_rows", branch))[0];
  }

  // The branches' outputs by one network call, [negative,] positive.
  Tensor call(const std::string& prefix, const std::vector<Tensor>& texts, const Tensor& input,
              const Tensor& times, const CosmosTransformer& model, const Options& options,
              NamedTensors& trace) const {
    const auto samples = static_cast<std::int64_t>(texts.size());
    Inputs inputs = {texts, {{input.size(2), input.size(3), input.size(4)}}, {}, {}};
    inputs.clip.known_frames = known();
    const auto& fps = json_["parameters"]["fps"];
    if (!fps.is_null()) inputs.clip.fps = fps.get<double>();
    inputs.latents = input.expand({samples, -1, -1, -1, -1});
    inputs.timesteps = known() == 0 ? times.expand({samples}).contiguous()
                                    : times.view({1, -1}).expand({samples, -1}).contiguous();
    const Outputs outputs = cosmos_cases::run(model, inputs, options);
    for (const auto& [name, value] : outputs.seen) trace.emplace(prefix + name, value);
    return outputs.output;
  }

  Tensor step(std::int64_t index, const Tensor& x, float sigma, float next,
              const CosmosTransformer& model, const Options& options, NamedTensors& trace) const {
    const std::string prefix = fmt::format("step{:03}.", index);
    const Preconditioning at_sigma = Preconditioning::rectified_flow(sigma);
    const Tensor input = known_frames(at_sigma.input(x));
    Tensor times = at::full({1}, at_sigma.time);
    if (known() > 0) {
      const float given = Preconditioning::rectified_flow(kCosmosKnownSigma).time;
      times = frame_times(at_sigma.time, given, known(), x.size(2)).view({1, 1, -1, 1, 1});
    }
    Tensor positive, negative;
    const auto evaluate = [&](const char* branch, const std::vector<Tensor>& texts) {
      return call(prefix + branch + ".", texts, input, times, model, options, trace);
    };
    if (guided() && batched()) {
      const Tensor both = evaluate("batch", {text("negative_"), text("")});
      negative = both.narrow(0, 0, 1);
      positive = both.narrow(0, 1, 1);
    } else {
      positive = evaluate("cond", {text("")});
      if (guided()) negative = evaluate("uncond", {text("negative_")});
    }
    const Tensor x0 = known_frames(at_sigma.denoised(x, positive));
    Tensor guided_x0 = x0;
    if (guided()) {
      const Tensor x0_negative = known_frames(at_sigma.denoised(x, negative));
      guided_x0 = x0 + (x0 - x0_negative) * json_["parameters"]["guidance_scale"].get<double>();
      trace.emplace(prefix + "out_uncond", negative);
      trace.emplace(prefix + "x0_uncond", x0_negative);
    }
    const Tensor velocity = (x - guided_x0) / sigma, latent = x + velocity * (next - sigma);
    for (const auto& [name, value] :
         {std::pair{"model_input", input}, std::pair{"t_model", times},
          std::pair{"out_cond", positive}, std::pair{"x0_cond", x0},
          std::pair{"x0_guided", guided_x0}, std::pair{"velocity", velocity},
          std::pair{"latent", latent}, std::pair{"sigma", at::scalar_tensor(sigma)}})
      trace.emplace(prefix + name, value);
    return latent;
  }

  nlohmann::json json_;
  NamedTensors inputs_, expected_;
};

// Every recorded tensor of the steps and their end.
void check_case(const Case& recorded, const CosmosTransformer& model, const Options& options) {
  const NamedTensors found = recorded.run(model, options);
  std::size_t compared = 0;
  for (const auto& [name, value] : recorded.expected()) {
    if (!name.starts_with("step") && !name.starts_with("final")) continue;
    CAPTURE(name);
    REQUIRE(found.contains(name));
    CHECK(recorded.difference(name, found.at(name), value) < recorded.tolerance(name));
    ++compared;
  }
  CHECK(compared >= 40);
}

}  // namespace

TEST_CASE("cosmos: parts of the recorded cases") {
  for (const std::string name : {"t2i_batched", "v2w_image"}) {
    CAPTURE(name);
    const Case recorded(own_goldens() / "transformer" / name);
    const CosmosTransformer model = load(own_goldens() / recorded.checkpoint() / "transformer");
    for (const Options& options : all_ways()) check_case(recorded, model, options);
  }
}

TEST_CASE("cosmos: the recorded cases, where the full recordings are" *
          doctest::test_suite("needs goldens")) {
  const fs::path goldens = full_goldens();
  if (goldens.empty()) return test::skip("the full recordings are not here");
  for (const std::string name : {"t2i_sequential", "t2i_batched", "t2i_no_cfg", "v2w_image",
                                 "v2w_image_batched", "v2w_video"}) {
    CAPTURE(name);
    const Case recorded(goldens / "cases" / name);
    const CosmosTransformer model = load(goldens / recorded.checkpoint() / "transformer");
    for (const Options& options : all_ways()) check_case(recorded, model, options);
  }
}

}  // namespace diptych
