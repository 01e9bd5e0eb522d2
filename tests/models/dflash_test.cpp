// The configs and checkpoints of Qwen3 and of DFlash drafters, and what is refused in them.
#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include "lib/models/block_drafter/block_drafter.h"
#include "lib/models/qwen3/qwen3.h"
#include "lib/tensor/noise.h"
#include "lib/tensor/safetensors.h"
#include "tests/tensor/support.h"

namespace diptych {
namespace {

using Json = nlohmann::json;
using Named = std::vector<std::pair<std::string, Tensor>>;
using test::message_of;

Json target_json() {
  return Json::parse(R"({"hidden_size": 16, "num_hidden_layers": 4, "num_attention_heads": 2,
    "num_key_value_heads": 1, "head_dim": 8, "intermediate_size": 24, "vocab_size": 32,
    "rope_theta": 1e6, "tie_word_embeddings": true, "hidden_act": "silu"})");
}

Json drafter_json() {
  Json json = target_json();
  json.merge_patch(Json::parse(R"({"num_hidden_layers": 2, "block_size": 4, "num_target_layers": 4,
    "tie_word_embeddings": false, "layer_types": ["full_attention", "full_attention"],
    "dflash_config": {"mask_token_id": 30, "target_layer_ids": [0, 2]}})"));
  return json;
}

Qwen3Config target_config(const Json& changes = {}) {
  const test::Folder folder;
  Json json = target_json();
  json.merge_patch(changes.is_null() ? Json::object() : changes);
  return Qwen3Config::load(folder.write("config.json", json.dump()));
}

BlockDrafterConfig drafter_config(const test::Folder& folder, const char* changes = "{}") {
  Json json = drafter_json();
  json.merge_patch(Json::parse(changes));
  return BlockDrafterConfig::load(folder.write("config.json", json.dump()), target_config());
}

// What is said of a drafter's config with these changes, behind the name of its file.
std::string error_of(const char* changes) {
  const test::Folder folder;
  const std::string message = message_of([&] { drafter_config(folder, changes); });
  const std::string file = (folder / "config.json").string() + ": ";
  REQUIRE_MESSAGE(message.starts_with(file), message);
  return message.substr(file.size());
}

Named with_tensors(Named tensors, std::initializer_list<const char*> names) {
  for (const char* name : names) tensors.emplace_back(name, at::zeros({4}));
  return tensors;
}

// The tensors of decoder layers below a prefix.
Named layer_tensors(const QwenConfig& c, const std::string& prefix) {
  Named tensors;
  at::Generator generator = cpu_generator(11);
  const auto add = [&](std::int64_t layer, const char* name, at::IntArrayRef shape) {
    tensors.emplace_back(fmt::format("{}layers.{}.{}.weight", prefix, layer, name),
                         randn(shape, generator));
  };
  for (std::int64_t i = 0; i < c.num_hidden_layers; ++i) {
    add(i, "input_layernorm", {c.hidden_size});
    add(i, "post_attention_layernorm", {c.hidden_size});
    add(i, "self_attn.q_proj", {c.q_width(), c.hidden_size});
    add(i, "self_attn.k_proj", {c.kv_width(), c.hidden_size});
    add(i, "self_attn.v_proj", {c.kv_width(), c.hidden_size});
    add(i, "self_attn.o_proj", {c.hidden_size, c.q_width()});
    add(i, "self_attn.q_norm", {c.head_dim});
    add(i, "self_attn.k_norm", {c.head_dim});
    add(i, "mlp.gate_proj", {c.intermediate_size, c.hidden_size});
    add(i, "mlp.up_proj", {c.intermediate_size, c.hidden_size});
    add(i, "mlp.down_proj", {c.hidden_size, c.intermediate_size});
  }
  tensors.emplace_back(prefix + "norm.weight", at::ones({c.hidden_size}));
  return tensors;
}

Named drafter_tensors(const BlockDrafterConfig& c) {
  Named tensors = layer_tensors(c.decoder, "");
  tensors.emplace_back("fc.weight", at::ones({c.decoder.hidden_size, c.feature_width()}));
  tensors.emplace_back("hidden_norm.weight", at::ones({c.decoder.hidden_size}));
  return tensors;
}

Weights written(const test::Folder& folder, const Named& tensors) {
  write_safetensors(folder / "model.safetensors", tensors);
  return Weights::open(folder / "model.safetensors", at::kCPU, at::kFloat);
}

}  // namespace

TEST_CASE("qwen3: rope_parameters stand for rope_theta") {
  CHECK(target_config().rope_theta == 1e6);
  const Json newer = {{"rope_theta", nullptr},
                      {"rope_parameters", {{"rope_theta", 5e5}, {"rope_type", "default"}}}};
  CHECK(target_config(newer).rope_theta == 5e5);
  const Json scaled = {{"rope_parameters", {{"rope_theta", 5e5}, {"rope_type", "yarn"}}}};
  CHECK(message_of([&] { target_config(scaled); })
            .ends_with("rope_parameters.rope_type: found \"yarn\", expected rope_theta and a "
                       "rope_type \"default\" alone"));
  CHECK(message_of([&] {
          target_config({{"rope_parameters", 7}});
        }).ends_with("rope_parameters: found 7, expected an object"));
  CHECK(message_of([&] {
          target_config({{"tie_word_embeddings", 1}});
        }).ends_with("tie_word_embeddings: found 1, expected true or false"));
}

TEST_CASE("qwen3: a tied head is the embedding, another one must be there") {
  const test::Folder folder;
  const Qwen3Config tied = target_config();
  const Qwen3Config untied = target_config({{"tie_word_embeddings", false}});
  Named tensors = layer_tensors(tied, "model.");
  tensors.emplace_back("model.embed_tokens.weight", at::rand({32, 16}));
  const Weights weights = written(folder, tensors);
  const Qwen3 model = Qwen3::load(weights, tied);
  CHECK(model.lm_head.is_same(model.embed_tokens));
  CHECK(message_of([&] { Qwen3::load(weights, untied); }).find("lm_head.weight") !=
        std::string::npos);

  const test::Folder other;
  tensors.emplace_back("lm_head.weight", at::ones({32, 16}));
  const Weights whole = written(other, tensors);
  CHECK(Qwen3::load(whole, untied).lm_head.equal(at::ones({32, 16})));
  const Qwen3 copied = Qwen3::load(whole, tied);  // a copy in the file is not used
  CHECK(copied.lm_head.is_same(copied.embed_tokens));
}

TEST_CASE("dflash: features come from these layers by default") {
  using Layers = std::vector<std::int64_t>;
  CHECK(default_target_layers(36, 5) == Layers{1, 9, 17, 25, 33});
  CHECK(default_target_layers(36, 1) == Layers{18});
  CHECK(default_target_layers(4, 2) == Layers{1, 1});
  CHECK(default_target_layers(28, 3) == Layers{1, 13, 25});
  CHECK(default_target_layers(9, 3) == Layers{1, 4, 6});  // 3.5 to the even 4
}

TEST_CASE("dflash: a config is read") {
  const test::Folder folder;
  const BlockDrafterConfig config = drafter_config(folder);
  CHECK(config.block_size == 4);
  CHECK(config.mask_token_id == 30);
  CHECK(config.target_layer_ids == std::vector<std::int64_t>{0, 2});
  CHECK(config.feature_width() == 32);
  const auto defaults =
      drafter_config(folder, R"({"dflash_config": {"target_layer_ids": null, "causal": false}})");
  CHECK(defaults.target_layer_ids == std::vector<std::int64_t>{1, 1});
}

TEST_CASE("dflash: a drafter that does not fit its target is refused") {
  CHECK(error_of(R"({"hidden_size": 32})") ==
        "hidden_size: found 32, expected 16 as in the target");
  CHECK(error_of(R"({"num_target_layers": 36})") ==
        "num_target_layers: found 36, expected 4 as in the target");
  CHECK(error_of(R"({"dflash_config": {"mask_token_id": 32}})") ==
        "dflash_config.mask_token_id: found 32, expected an id below the target's vocab_size 32");
  CHECK(error_of(R"({"dflash_config": {"target_layer_ids": [0, 4]}})") ==
        "dflash_config.target_layer_ids: found [0,4], expected a list of layers from 0 to 3");
  CHECK(error_of(R"({"dflash_config": {"target_layer_ids": []}})") ==
        "dflash_config.target_layer_ids: found [], expected a list of layers from 0 to 3");
}

TEST_CASE("dflash: what a config lacks is said") {
  CHECK(error_of(R"({"num_target_layers": null})") ==
        "num_target_layers: not given; expected a number");
  CHECK(error_of(R"({"block_size": null})") == "block_size: not given; expected a number");
  CHECK(error_of(R"({"block_size": 0})") == "block_size: 0 is out of range, expected 1 to 1024");
  CHECK(error_of(R"({"dflash_config": null})") ==
        "dflash_config: found none, expected the object of a DFlash drafter");
  CHECK(error_of(R"({"dflash_config": {"mask_token_id": null}})") ==
        "dflash_config.mask_token_id: found null, expected an id of the target's vocabulary");
}

TEST_CASE("dflash: drafters of another kind are refused by the key that makes them one") {
  CHECK(error_of(R"({"layer_types": ["full_attention", "sliding_attention"]})") ==
        "layer_types: found [\"full_attention\",\"sliding_attention\"], expected "
        "\"full_attention\" alone");
  CHECK(error_of(R"({"architectures": ["DFlash2DraftModel"]})") ==
        "architectures: found [\"DFlash2DraftModel\"], expected \"DFlashDraftModel\"");
  CHECK(error_of(R"({"is_causal": true})") == "is_causal: found true, expected false");
  CHECK(error_of(R"({"attention_sink_bias": true})") ==
        "attention_sink_bias: found true, expected false");
  CHECK(error_of(R"({"dflash_config": {"causal": true}})") ==
        "dflash_config.causal: found true, expected false");
  CHECK(error_of(R"({"dflash_config": {"use_swa": true}})") ==
        "dflash_config.use_swa: found true, expected false");
  CHECK(error_of(R"({"transformer_layer_config": {"hidden_size": 16}})") ==
        "transformer_layer_config: found {\"hidden_size\":16}, expected no such key: the "
        "\"speculators\" layout is not in this version");
  CHECK(error_of(R"({"draft_vocab_size": 16})") ==
        "draft_vocab_size: found 16, expected no such key: a vocabulary of the drafter's own is "
        "not in this version");
  for (const char* key : {"selector_rank", "conv_group_size"}) {
    const std::string expected = fmt::format(
        "{}: found 8, expected no such key: a successor of DFlash is not in this "
        "version",
        key);
    CHECK(error_of(fmt::format("{{\"{}\": 8}}", key).c_str()) == expected);
    CHECK(error_of(fmt::format("{{\"dflash_config\": {{\"{}\": 8}}}}", key).c_str()) ==
          "dflash_config." + expected);
  }
  CHECK(error_of(R"({"dflash_config": {"sinks": 1}})") ==
        "dflash_config.sinks: found 1, expected mask_token_id and target_layer_ids alone");
  const test::Folder folder;
  folder.write("mask_embedding.pt", "");
  CHECK(message_of([&] { drafter_config(folder); }) ==
        (folder / "mask_embedding.pt").string() +
            ": found a mask embedding, expected a row of the target's embed_tokens");
}

TEST_CASE("dflash: weights of the drafter's own vocabulary are refused") {
  for (const char* name :
       {"embed_tokens.weight", "lm_head.weight", "d2t", "t2d", "mask_embedding"}) {
    const test::Folder folder;
    const BlockDrafterConfig config = drafter_config(folder);
    const Weights weights = written(folder, with_tensors(drafter_tensors(config), {name}));
    CHECK(message_of([&] { BlockDrafter::load(weights, config); }) ==
          fmt::format("{}: {}: found in the drafter's weights, expected none: embedding, mask and "
                      "logits are the target's",
                      folder.path().string(), name));
  }
}

TEST_CASE("dflash: a tensor that is not the model's is refused") {
  const test::Folder folder;
  const BlockDrafterConfig config = drafter_config(folder);
  const Weights weights =
      written(folder, with_tensors(drafter_tensors(config), {"layers.0.self_attn.sinks"}));
  CHECK(message_of([&] { BlockDrafter::load(weights, config); }).find("layers.0.self_attn.sinks") !=
        std::string::npos);
}

TEST_CASE("dflash: features are the outputs of their layers, the last one's behind the norm") {
  BlockDrafter drafter;
  drafter.config.decoder.hidden_size = 2;
  drafter.config.num_target_layers = 4;
  drafter.config.target_layer_ids = {3, 0, 3};
  const Tensor features = at::zeros({1, 6});
  for (std::int64_t layer = 0; layer < 4; ++layer)
    drafter.collect(layer, at::full({1, 2}, static_cast<float>(layer + 1)), features);
  drafter.collect_last(at::full({1, 2}, 9.0F), features);
  CHECK(features.equal(at::tensor({9.0F, 9.0F, 1.0F, 1.0F, 9.0F, 9.0F}).unsqueeze(0)));
}

TEST_CASE("qwen3: keys of a context are those of the layers' projections") {
  const Qwen3Config config = target_config();
  const test::Folder folder;
  const Weights weights = written(folder, layer_tensors(config, ""));
  const QwenDecoder decoder = QwenDecoder::load(weights, config);
  KvCache cache(config.kv_shape(), 1, 8, at::kFloat);
  QwenRows rows;
  rows.slots = at::tensor({2, 5}, at::kLong);
  rows.cos = at::ones({2, 4});  // no rotation
  rows.sin = at::zeros({2, 4});
  const Tensor h = at::sin(at::arange(32, at::kFloat)).view({2, 16});
  decoder.write_keys(rows, h, cache, {});
  for (std::int64_t layer = 0; layer < 4; ++layer) {
    const Weights attn = weights.scope(fmt::format("layers.{}.self_attn", layer));
    const Tensor v = at::linear(h, attn.get("v_proj.weight", {8, 16}));
    const Tensor k = at::linear(h, attn.get("k_proj.weight", {8, 16}));
    const Tensor normed =
        k * (k.pow(2).mean(1, true) + config.rms_norm_eps).rsqrt() * attn.get("k_norm.weight", {8});
    const auto stored = [&](const Tensor& all) {
      return all.select(0, 0).index_select(0, rows.slots).select(1, 0);
    };
    CHECK(at::allclose(stored(cache.values(layer)), v, 1e-5, 1e-5));
    CHECK(at::allclose(stored(cache.keys(layer)), normed, 1e-5, 1e-5));
  }
  CHECK(cache.keys(0).select(0, 0).select(0, 3).abs().max().item<float>() == 0);
}

}  // namespace diptych
