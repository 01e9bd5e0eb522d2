// Recorded values: the formulas of specs/bagel.md section 4 in float64 with torch 2.11 in Python,
// on the tiny checkpoint; that script agrees with the recorded cases 04a and 05a within 2e-6.
#include "lib/models/siglip/siglip.h"

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include "lib/base/error.h"
#include "lib/models/bagel/bagel.h"
#include "lib/verify/trace_compare.h"
#include "tests/models/siglip_inputs.h"
#include "tests/verify/goldens.h"

namespace diptych {
namespace {

namespace fs = std::filesystem;
using siglip_inputs::load_tiny;

using Seen = std::map<std::string, Tensor, std::less<>>;

Seen run(const Siglip& model, const Tensor& patches, const Tensor& ids,
         const char* attention = "auto") {
  Seen seen;
  const Tensor out = model.forward(
      patches, ids, *make_attention(attention, patches.device()),
      [&](std::string_view name, const Tensor& value) { seen.emplace(name, value.clone()); });
  CHECK(out.equal(seen.at("vit.post_layernorm")));
  return seen;
}

double relative_norm(const Tensor& found, const Tensor& expected) {
  return ((found.to(at::kFloat) - expected).norm() / expected.norm()).item<double>();
}

// The first `.packed_vit_tokens` of a recording names its call: "prefill.01.cond.vit".
std::string vit_call(const NamedTensors& recorded) {
  const std::string_view leaf = ".packed_vit_tokens";
  for (const auto& [name, value] : recorded) {
    if (name.ends_with(leaf)) return name.substr(0, name.size() - leaf.size());
  }
  return {};
}

constexpr TraceGroups kVision[] = {{"prefill.*.vit.vit.*", {"prefill.vit.*"}}};
constexpr std::string_view kInOrder[] = {"embed", "layer", "post_layernorm", "connector"};
constexpr TraceNames kNames = {{}, kInOrder, {}, kVision};

void check_recorded_case(const fs::path& folder) {
  const NamedTensors recorded = read_trace(folder / "expected.safetensors");
  const std::string call = vit_call(recorded);
  REQUIRE_FALSE(call.empty());
  const Tensor ids = recorded.at(call + ".packed_vit_position_ids");
  const Seen seen = run(load_tiny(), recorded.at(call + ".packed_vit_tokens"), ids);
  NamedTensors found, expected;
  for (const auto& [name, value] : seen) {
    found.emplace(fmt::format("{}.{}", call, name), value);
    expected.emplace(fmt::format("{}.{}", call, name),
                     recorded.at(fmt::format("{}.{}", call, name)));
  }
  CHECK(expected.size() == 4);
  const auto comparison = compare_traces(
      found, expected, Tolerances::from_case(test::case_json(folder), kNames), kNames);
  const TensorComparison* first = comparison.first_divergence();
  INFO("first divergence: ", first != nullptr ? describe(*first) : std::string("none"));
  CHECK(comparison.pass());
  // The ids of a picture of w x h patches, w read off where the second row begins.
  const std::int64_t w = (ids < 10).sum().item<std::int64_t>(), h = ids.size(0) / w;
  CHECK(siglip_position_ids(h, w, load_tiny().config).equal(ids));
}

}  // namespace

TEST_CASE("a picture's features are the recorded ones") {
  const Siglip model = load_tiny();
  REQUIRE(model.layers.size() == 2);
  const Seen seen = run(model, siglip_inputs::patches(), siglip_inputs::position_ids());
  const auto check = [&](const char* name, std::vector<double> values, double sum) {
    CAPTURE(name);
    const Tensor& rows = seen.at(name);
    CHECK(rows.sizes() == at::IntArrayRef({6, 32}));
    for (std::size_t i = 0; i < 4; ++i) {
      CHECK(rows[4][static_cast<std::int64_t>(i)].item<double>() ==
            doctest::Approx(values[i]).epsilon(1e-5));
    }
    CHECK(rows[0][31].item<double>() == doctest::Approx(values[4]).epsilon(1e-5));
    CHECK(rows.abs().sum().item<double>() == doctest::Approx(sum).epsilon(1e-6));
  };
  check("vit.embed", {-0.6732912, -1.8855169, -1.4292325, 1.6821891, -0.7075584}, 121.5499940913);
  check("vit.layer00.hidden", {-0.9001341, -2.7267377, -2.8077416, 1.2932813, -0.3520642},
        175.4849208845);
  check("vit.layer01.hidden", {-1.5743833, -3.8655078, -2.967878, 0.9637484, -0.6206202},
        209.6492478685);
  check("vit.post_layernorm", {-1.1293597, -3.4623486, -2.2794457, 0.8639689, -0.4795673},
        151.400268358);
}

TEST_CASE("the recorded case 05a, and 04a where the full recordings are") {
  int found = 0;
  for (const fs::path& folder : test::bagel_cases()) {
    const std::string name = folder.filename().string();
    if (name != "04a_edit" && name != "05a_understand_greedy") continue;
    CAPTURE(name);
    check_recorded_case(folder);
    ++found;
  }
  CHECK(found >= 1);
}

TEST_CASE("bfloat16 stays near float32, and comes back in bfloat16") {
  const Tensor ids = siglip_inputs::position_ids(), patches = siglip_inputs::patches();
  const Tensor wide = run(load_tiny(), patches, ids).at("vit.post_layernorm");
  const Siglip narrow = load_tiny(at::kBFloat16);
  CHECK((narrow.post_layernorm.weight.scalar_type() == at::kFloat));
  const Seen seen = run(narrow, patches.to(at::kBFloat16), ids);
  for (const auto& [name, value] : seen) CHECK((value.scalar_type() == at::kBFloat16));
  const double difference = relative_norm(seen.at("vit.post_layernorm"), wide);
  CHECK(difference > 0);
  CHECK(difference < 0.02);
}

TEST_CASE("every attention backend serves the heads of 72 of the released size") {
  SiglipConfig config;
  config.hidden_size = 144;
  config.num_attention_heads = 2;
  config.num_hidden_layers = 2;
  config.intermediate_size = 40;
  const Siglip model = Siglip::load(Weights::dummy(at::kCPU, at::kFloat), config);
  CHECK(config.head_dim() == 72);
  CHECK(config.side() == 70);
  const Tensor patches = siglip_inputs::patches();
  const Tensor ids = siglip_position_ids(2, 3, config);
  CHECK(ids.equal(at::tensor({0, 1, 2, 70, 71, 72}, at::kLong)));
  const Tensor math = run(model, patches, ids, "math").at("vit.post_layernorm");
  const Tensor sdpa = run(model, patches, ids, "sdpa").at("vit.post_layernorm");
  CHECK(relative_norm(sdpa, math) < 1e-5);
  CHECK(math.std().item<double>() > 0.1);
}

TEST_CASE("a picture is cut into patches row by row, columns (dy, dx, channel)") {
  // 3 channels of 4 x 6 pixels: value = channel * 100 + y * 10 + x.
  const Tensor y = at::arange(4, at::kFloat).view({1, 1, 4, 1}) * 10;
  const Tensor x = at::arange(6, at::kFloat).view({1, 1, 1, 6});
  const Tensor image = at::arange(3, at::kFloat).view({1, 3, 1, 1}) * 100 + y + x;
  const Tensor rows = patchify(image, 2);
  CHECK(rows.sizes() == at::IntArrayRef({6, 12}));
  CHECK(rows[0].equal(
      at::tensor({0, 100, 200, 1, 101, 201, 10, 110, 210, 11, 111, 211}, at::kFloat)));
  CHECK(rows[5].equal(
      at::tensor({24, 124, 224, 25, 125, 225, 34, 134, 234, 35, 135, 235}, at::kFloat)));
  CHECK(rows.select(1, 0).equal(at::tensor({0, 2, 4, 20, 22, 24}, at::kFloat)));
}

TEST_CASE("more patches than the position table has a side are refused") {
  SiglipConfig config;
  config.image_size = 140;
  CHECK(siglip_position_ids(10, 1, config)[9].item<std::int64_t>() == 90);
  CHECK_THROWS_WITH_AS(siglip_position_ids(3, 11, config),
                       "vision: a picture of 11 x 3 patches, expected 1 to 10 a side", InputError);
  CHECK_THROWS_AS(siglip_position_ids(0, 3, config), InputError);
}

}  // namespace diptych
