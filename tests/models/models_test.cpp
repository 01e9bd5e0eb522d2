#include <filesystem>
#include <fstream>

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include "lib/base/error.h"
#include "lib/models/bagel/bagel.h"
#include "lib/models/bagel/latent_rows.h"
#include "lib/models/flux_vae/flux_vae.h"

namespace diptych {
namespace {

namespace fs = std::filesystem;
const fs::path kCheckpoint = fs::path(DIPTYCH_SOURCE_DIR) / "tests/goldens/bagel/checkpoint";

Weights bagel_weights() {
  return Weights::open(kCheckpoint / "ema.safetensors", at::kCPU, at::kFloat);
}

fs::path folder_with(const char* name, const std::string& text) {
  const fs::path folder = fs::temp_directory_path() / "diptych_models_test";
  fs::create_directories(folder);
  for (const char* file : {"llm_config.json", "vit_config.json"}) {
    fs::copy_file(kCheckpoint / file, folder / file, fs::copy_options::overwrite_existing);
  }
  fs::remove(folder / "config.json");
  std::ofstream(folder / name) << text;
  return folder;
}

// The file with some of its keys changed.
fs::path folder_changed(const char* name, const char* keys) {
  auto json = nlohmann::json::parse(std::ifstream(kCheckpoint / name));
  json.merge_patch(nlohmann::json::parse(keys));
  return folder_with(name, json.dump());
}

}  // namespace

TEST_CASE("a latent unpacks patch row, patch column, channel") {
  // Two latent rows side by side, patch 2, 3 channels: value = row * 12 + (dy * 2 + dx) * 3 + c.
  const Tensor latent = unpack_latent(at::arange(24, at::kFloat).reshape({2, 12}), 1, 2, 2, 3);
  CHECK(latent.sizes() == at::IntArrayRef({1, 3, 2, 4}));
  CHECK(
      latent[0][0].equal(at::tensor({0.F, 3.F, 12.F, 15.F, 6.F, 9.F, 18.F, 21.F}).reshape({2, 4})));
  CHECK(latent[0][2][1][3].item<float>() == 23);
}

TEST_CASE("the released layout loads whole, and the side of the position table beats config.json") {
  const BagelConfig config = BagelConfig::load(kCheckpoint);
  CHECK(config.llm.hidden_size == 64);
  CHECK(config.llm.head_dim == 16);
  CHECK(config.vit_max_num_patch_per_side == 10);
  const Bagel model = Bagel::load(bagel_weights(), Bagel::checked(bagel_weights(), config));
  CHECK(model.config.latent_side == 12);  // config.json says 6
  CHECK(model.language_model.layers.size() == 3);
  CHECK(model.latents.position_ids(2, 3).equal(at::tensor({0, 1, 2, 12, 13, 14}, at::kLong)));
}

TEST_CASE("a checkpoint that does not fit its config is refused by name") {
  BagelConfig config = BagelConfig::load(kCheckpoint);
  SUBCASE("another width") {
    config.llm.intermediate_size = 161;
    CHECK_THROWS_WITH_AS(Bagel::checked(bagel_weights(), config),
                         doctest::Contains("mlp.gate_proj.weight"), InputError);
  }
  SUBCASE("a layer more") {
    config.llm.num_hidden_layers = 4;
    CHECK_THROWS_WITH_AS(Bagel::checked(bagel_weights(), config), doctest::Contains("layers.3"),
                         InputError);
  }
  SUBCASE("a layer fewer leaves tensors unread") {
    config.llm.num_hidden_layers = 2;
    CHECK_THROWS_WITH_AS(Bagel::checked(bagel_weights(), config), doctest::Contains("layers.2"),
                         InputError);
  }
  SUBCASE("a vision layer more") {
    config.vit.num_hidden_layers = 4;
    CHECK_THROWS_WITH_AS(Bagel::checked(bagel_weights(), config),
                         doctest::Contains("encoder.layers.2"), InputError);
  }
}

TEST_CASE("broken config files are refused by file and key") {
  CHECK_THROWS_WITH_AS(BagelConfig::load(folder_with("llm_config.json", "{")),
                       doctest::Contains("ends within its JSON"), InputError);
  CHECK_THROWS_WITH_AS(
      BagelConfig::load(folder_changed("llm_config.json", R"({"hidden_size": "64"})")),
      doctest::Contains("hidden_size: found \"64\""), InputError);
  CHECK_THROWS_WITH_AS(
      BagelConfig::load(folder_changed("llm_config.json", R"({"num_hidden_layers": 0})")),
      doctest::Contains("num_hidden_layers: 0 is out of range"), InputError);
  CHECK_THROWS_WITH_AS(
      BagelConfig::load(folder_changed("llm_config.json", R"({"num_attention_heads": 3})")),
      doctest::Contains("does not divide"), InputError);
  CHECK_THROWS_WITH_AS(
      BagelConfig::load(folder_changed("vit_config.json", R"({"num_attention_heads": 7})")),
      doctest::Contains("vit_config.json: hidden_size 32 does not divide into 7 heads"),
      InputError);
  CHECK_THROWS_WITH_AS(
      BagelConfig::load(folder_changed("vit_config.json", R"({"hidden_act": "gelu"})")),
      doctest::Contains("hidden_act: found \"gelu\""), InputError);
  // The released loader has these whatever the file says.
  CHECK_THROWS_WITH_AS(
      BagelConfig::load(folder_changed("llm_config.json", R"({"qk_norm": false})")),
      doctest::Contains("llm_config.json: qk_norm: found false, expected true"), InputError);
  CHECK_THROWS_WITH_AS(
      BagelConfig::load(folder_changed("llm_config.json", R"({"tie_word_embeddings": true})")),
      doctest::Contains("llm_config.json: tie_word_embeddings: found true, expected false"),
      InputError);
  CHECK(BagelConfig::load(
            folder_changed("llm_config.json", R"({"qk_norm": true, "tie_word_embeddings": null})"))
            .llm.qk_norm);
  // A size that is missing would be the released model's, whose weights these need not be.
  CHECK_THROWS_WITH_AS(
      BagelConfig::load(folder_changed("llm_config.json", R"({"vocab_size": null})")),
      doctest::Contains("llm_config.json: vocab_size: not given; expected a number"), InputError);
  CHECK_THROWS_WITH_AS(
      BagelConfig::load(folder_changed("vit_config.json", R"({"image_size": null})")),
      doctest::Contains("vit_config.json: image_size: not given; expected a number"), InputError);
  CHECK_THROWS_WITH_AS(
      BagelConfig::load(folder_with("config.json", R"({"latent_patch_size": -2})")),
      doctest::Contains("latent_patch_size"), InputError);
  CHECK_THROWS_WITH_AS(
      BagelConfig::load(folder_with("config.json", R"({"interpolate_pos": true})")),
      doctest::Contains("interpolate_pos: found true, expected false"), InputError);
  CHECK_THROWS_WITH_AS(
      BagelConfig::load(folder_with("config.json", R"({"connector_act": "relu"})")),
      doctest::Contains("connector_act: found \"relu\", expected \"gelu_pytorch_tanh\""),
      InputError);
  CHECK_THROWS_WITH_AS(
      BagelConfig::load(folder_changed("llm_config.json", R"({"hidden_size": 192.5})")),
      doctest::Contains("hidden_size: found 192.5, expected a whole number"), InputError);
  CHECK(BagelConfig::load(folder_with("config.json", "{}")).latent_patch_size == 2);
}

TEST_CASE("the autoencoder's sizes are read off its tensors") {
  const Weights weights = Weights::open(kCheckpoint / "ae.safetensors", at::kCPU, at::kFloat);
  const FluxVaeConfig config = FluxVaeConfig::infer(weights);
  CHECK(config.ch == 32);
  CHECK(config.ch_mult == std::vector<std::int64_t>{1, 1, 2, 2});
  CHECK(config.num_res_blocks == 2);
  CHECK(config.z_channels == 16);
  CHECK(config.downsample() == 8);
  const FluxVae vae = FluxVae::load(weights, config);
  // The mean latent is affine in the moments' first half: 0.3611 * (1 - 0.1159).
  const Tensor moments = at::cat({at::ones({1, 16, 1, 1}), at::zeros({1, 16, 1, 1})}, 1);
  CHECK(vae.latent_from_moments(moments, {}).flatten()[0].item<float>() ==
        doctest::Approx(0.31924851));
  CHECK(vae.latent_from_moments(moments, at::ones({1, 16, 1, 1})).flatten()[3].item<float>() ==
        doctest::Approx(0.3611 * (2 - 0.1159)));
}

TEST_CASE("random weights fill the released 7B layout's small sibling") {
  const BagelConfig config = BagelConfig::load(kCheckpoint);
  const Bagel model = Bagel::load(Weights::dummy(at::kCPU, at::kFloat), config);
  CHECK(model.config.latent_side == 64);  // no tensor to read it off: the released size
  CHECK(model.latents.llm2vae.abs().max().item<float>() > 0);
}

}  // namespace diptych
