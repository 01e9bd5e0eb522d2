// Values recorded from transformers 4.57.6 (UMT5EncoderModel, T5EncoderModel) in float32, with
// padding to 512 tokens and a mask.
#include "lib/models/umt5/umt5.h"

#include <filesystem>
#include <map>
#include <string>

#include <doctest/doctest.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "lib/base/error.h"
#include "tests/models/umt5_inputs.h"
#include "tests/support/folder.h"
#include "tests/support/peak_bytes.h"
#include "tests/verify/goldens.h"

namespace diptych {
namespace {

using namespace umt5_inputs;
using Seen = std::map<std::string, Tensor, std::less<>>;
using Json = nlohmann::json;

constexpr double kTolerance = 2e-5;  // case.json: prompt_embeds and hidden

Seen run(const Umt5& model, const Tensor& ids) {
  Seen seen;
  seen.emplace("embeds", model.forward(ids_of(ids), KernelPolicy::automatic,
                                       [&](std::string_view name, const Tensor& value) {
                                         seen.emplace(name, value.clone());
                                       }));
  return seen;
}

double difference(const Tensor& found, const Tensor& expected) {
  REQUIRE(found.sizes() == expected.sizes());
  return (found.to(at::kFloat) - expected).abs().max().item<double>();
}

// Every recorded prompt, and what is recorded inside for the first one.
void check_recorded(const std::string& family, std::size_t prompts, std::size_t tables) {
  const Umt5 model = load(family);
  const Weights expected = recorded(kGoldens / family / "text_encode.safetensors");
  std::size_t checked = 0, biases = 0;
  for (int prompt = 0; prompt < 8; ++prompt) {
    const std::string name = fmt::format("prompt{}.", prompt);
    if (!expected.contains(name + "ids")) continue;
    CAPTURE(name);
    const Seen seen = run(model, get(expected, name + "ids", at::kLong));
    CHECK(difference(seen.at("embeds"), get(expected, name + "embeds")) < kTolerance);
    ++checked;
    if (prompt > 0) continue;
    for (int i = 0; i < 3; ++i) {
      const std::string hidden = fmt::format("hidden{:02}", i);
      CHECK(difference(seen.at(hidden), get(expected, "encoder.prompt0." + hidden)) < kTolerance);
    }
    for (int i = 0; i < 2; ++i) {
      const std::string bias = fmt::format("block{:02}.position_bias", i);
      CHECK(seen.contains(bias) == expected.contains(fmt::format("encoder.{}_24x24", bias)));
      if (!seen.contains(bias)) continue;
      const std::int64_t n = std::min<std::int64_t>(24, seen.at(bias).size(1));
      const auto corner = [n](const Tensor& t) { return t.narrow(1, 0, n).narrow(2, 0, n); };
      CHECK(corner(seen.at(bias))
                .equal(corner(get(expected, fmt::format("encoder.{}_24x24", bias)))));
      ++biases;
    }
  }
  CHECK(checked == prompts);
  CHECK(biases == tables);
}

}  // namespace

TEST_CASE("UMT5's recorded prompts") {
  check_recorded("wan", 4, 2);
}

TEST_CASE("T5's recorded prompts") {
  check_recorded("cosmos", 3, 1);
}

TEST_CASE("all prompts, where the full recordings are") {
  const std::pair<const char*, const char*> kFamilies[] = {{"wan", "checkpoint"},
                                                           {"cosmos", "checkpoint_t2i"}};
  for (const auto& [family, checkpoint] : kFamilies) {
    for (const fs::path& goldens : test::goldens_of(family)) {
      if (!fs::is_directory(goldens / "cases/text_encode")) continue;
      const fs::path folder = goldens / checkpoint / "text_encoder";
      const Umt5 model = Umt5::load(recorded(folder / "model.safetensors"),
                                    Umt5Config::load(folder / "config.json"));
      const Weights expected = recorded(goldens / "cases/text_encode/expected.safetensors");
      const Tensor ids = get(expected, "tokens.input_ids", at::kLong),
                   lengths = get(expected, "tokens.seq_len", at::kLong),
                   embeds = get(expected, "prompt_embeds");
      for (std::int64_t i = 0; i < ids.size(0); ++i) {
        const auto n = lengths[i].item<std::int64_t>();
        const Tensor found = run(model, ids[i].narrow(0, 0, n).contiguous()).at("embeds");
        CHECK(difference(found, embeds[i].narrow(0, 0, n)) < kTolerance);
      }
      CHECK(ids.size(0) >= 4);
    }
  }
}

TEST_CASE("buckets of relative positions are the recorded ones") {
  const Weights expected = recorded(kGoldens / "wan/text_encode.safetensors");
  const Tensor buckets = get(expected, "encoder.relative_bucket.relpos_minus256_to_256", at::kLong);
  CHECK(umt5_buckets(at::arange(-256, 257, at::kLong), config_of("wan")).equal(buckets));
}

TEST_CASE("the embedding is found under either name, and under both") {
  const test::Folder folder;
  const Umt5Config config = config_of("wan");
  const Tensor ids = at::tensor({7, 1}, at::kLong);
  const Tensor expected = run(load("wan"), ids).at("embeds");
  const char* const tied = "encoder.embed_tokens.weight";
  for (const auto& names : std::vector<std::vector<const char*>>{{tied}, {"shared.weight", tied}}) {
    const Weights weights = recorded(whole_weights("wan", folder, names));
    CHECK(run(Umt5::load(weights, config), ids).at("embeds").equal(expected));
    weights.require_all_read();
  }
  CHECK(test::message_of([&] {
          Umt5::load(recorded(whole_weights("wan", folder, {})), config);
        }).find("shared.weight") != std::string::npos);
}

TEST_CASE("bfloat16 stays near float32, and comes back in bfloat16") {
  for (const char* family : {"wan", "cosmos"}) {
    const Weights expected = recorded(kGoldens / family / "text_encode.safetensors");
    const Seen seen = run(load(family, at::kBFloat16), get(expected, "prompt0.ids", at::kLong));
    CHECK((seen.at("embeds").scalar_type() == at::kBFloat16));
    const double error = relative_norm(seen.at("embeds"), get(expected, "prompt0.embeds"));
    CHECK(error > 0);
    CHECK(error < 0.02);
  }
}

TEST_CASE("other sizes: made-up weights, long prompts, and the estimate of their memory") {
  Umt5Config config = config_of("wan");
  config.num_heads = 3;
  config.d_kv = 8;
  config.relative_attention_num_buckets = 12;
  config.relative_attention_max_distance = 40;
  for (const bool is_t5 : {false, true}) {
    config.bias_in_every_layer = config.gated_gelu = !is_t5;
    for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
      const Umt5 model = Umt5::load(Weights::dummy(at::kCPU, dtype), config);
      for (const std::int64_t n : {1, 37, 300}) {
        const Tensor ids = at::arange(n, at::kLong);
        Tensor out;
        const std::int64_t peak =
            peak_bytes([&] { out = model.forward(ids_of(ids), KernelPolicy::automatic); });
        const std::int64_t estimate = umt5_encode_bytes(config, n, dtype);
        CAPTURE(n);
        CAPTURE(peak);
        CAPTURE(estimate);
        CHECK(out.isfinite().all().item<bool>());
        if (n == 300) CHECK(std::abs(peak - estimate) < peak / 10);
      }
    }
  }
}

TEST_CASE("the layout has the tensors of the released encoders") {
  for (const fs::path& goldens : test::goldens_of("wan")) {
    if (!fs::exists(goldens / "real_shapes/umt5.tsv")) continue;
    Umt5Config config;
    config.vocab_size = 256384;
    config.d_model = 4096;
    config.d_kv = 64;
    config.d_ff = 10240;
    config.num_layers = 24;
    config.num_heads = 64;
    std::map<std::string, std::string> found, expected;
    for (const auto& [name, shape] : umt5_layout(config))
      found[name] = fmt::format("{}", fmt::join(shape, "x"));
    std::ifstream file(goldens / "real_shapes/umt5.tsv");
    std::string name, shape;
    file >> name >> shape;  // the heads of the columns
    while (file >> name >> shape) expected[name] = shape;
    CHECK(found == expected);
    CHECK(umt5_weight_bytes(config, at::kBFloat16) == 11361820672);
  }
}

TEST_CASE(
    "a file may have the embedding under either name or both, and nothing beyond its config") {
  using Names = std::vector<const char*>;
  const char *const shared = "shared.weight", *const tied = "encoder.embed_tokens.weight";
  for (const char* family : {"wan", "cosmos"}) {
    for (const Names& names : {Names{shared}, Names{tied}, Names{shared, tied}}) {
      const test::Folder folder;
      const Weights weights =
          Weights::open(whole_weights(family, folder, names), at::kCPU, at::kFloat);
      Umt5Config config = config_of(family);
      CHECK(test::message_of([&] { check_umt5_tensors(weights, config); }) == "no error");
    }
    const test::Folder folder;
    const Weights weights = Weights::open(whole_weights(family, folder), at::kCPU, at::kFloat);
    Umt5Config config = config_of(family);
    --config.num_layers;
    CHECK(test::message_of([&] {
            check_umt5_tensors(weights, config);
          }).find("unexpected tensors that the model does not have: ") != std::string::npos);
  }
}

TEST_CASE("what the encoder cannot take is refused") {
  const Umt5 model = load("cosmos");
  CHECK(test::message_of([&] {
          model.forward(std::vector<std::int64_t>{1, 288}, KernelPolicy::automatic);
        }) == "text encoder: token id 288 is not in its vocabulary of 288");
  CHECK_THROWS_AS(model.forward({}, KernelPolicy::automatic), c10::Error);

  const test::Folder folder;
  const Json good = Json::parse(std::ifstream(kGoldens / "wan/config.json"));
  const auto error_with = [&](const char* key, const Json& value) {
    Json json = good;
    json[key] = value;
    const fs::path file = folder.write("config.json", json.dump());
    const std::string error = test::message_of([&] { Umt5Config::load(file); });
    return error.starts_with(file.string() + ": ") ? error.substr(file.string().size() + 2) : error;
  };
  CHECK(error_with("vocab_size", 704) == "no error");
  CHECK(error_with("model_type", "mt5") == R"(model_type: found "mt5", expected "umt5" or "t5")");
  CHECK(error_with("feed_forward_proj", "gated-silu") ==
        R"(feed_forward_proj: found "gated-silu", expected "gated-gelu" or "relu")");
  CHECK(error_with("dense_act_fn", "relu").starts_with(R"(dense_act_fn: found "relu", expected)"));
  CHECK(error_with("num_heads", nullptr) == "num_heads: not given; expected a number");
  CHECK(error_with("d_ff", -1).starts_with("d_ff: -1 is out of range"));
  CHECK(error_with("relative_attention_num_buckets", 33)
            .starts_with("relative_attention_num_buckets: found 33, expected an even number"));
  CHECK(error_with("relative_attention_max_distance", 8)
            .starts_with("relative_attention_max_distance: found 8, expected more than 8"));
}

}  // namespace diptych
