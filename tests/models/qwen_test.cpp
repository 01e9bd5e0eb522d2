// A plain Qwen layer, its config and its positions.
#include <cmath>

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include "lib/models/qwen/config.h"
#include "lib/models/qwen/layer.h"
#include "lib/models/qwen/rope.h"
#include "lib/models/qwen_mot/plan.h"
#include "lib/tensor/noise.h"
#include "lib/tensor/safetensors.h"
#include "tests/tensor/support.h"

namespace diptych {
namespace {

using Json = nlohmann::json;
using test::message_of;

constexpr QwenParts kQwen2 = {.attention_bias = true, .qk_norm = false};
constexpr QwenParts kQwen3 = {.attention_bias = false, .qk_norm = true};
constexpr QwenParts kMrope = {.attention_bias = true, .qk_norm = true, .mrope = true};

// config.json of a small model, with some of its keys changed (null removes one).
Json small_json(const char* changes = "{}") {
  Json json = Json::parse(R"({"hidden_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "intermediate_size": 80, "vocab_size": 32, "hidden_act": "silu"})");
  json.merge_patch(Json::parse(changes));
  return json;
}

QwenConfig config_of(const test::Folder& folder, const char* changes, const QwenParts& parts) {
  return QwenConfig::load(folder.write("config.json", small_json(changes).dump()), parts);
}

std::string error_of(const char* changes, const QwenParts& parts) {
  const test::Folder folder;
  const std::string message = message_of([&] { config_of(folder, changes, parts); });
  const std::string file = (folder / "config.json").string() + ": ";
  REQUIRE(message.starts_with(file));
  return message.substr(file.size());
}

using NamedTensors = std::vector<std::pair<std::string, Tensor>>;

// The tensors of "layers.0" in a checkpoint, of random values.
NamedTensors layer_tensors(const QwenConfig& c, const std::string& suffix = "") {
  NamedTensors tensors;
  at::Generator generator = cpu_generator(7);
  const auto add = [&](const std::string& name, at::IntArrayRef shape) {
    tensors.emplace_back("layers.0." + name, randn(shape, generator));
  };
  const std::int64_t q = c.num_attention_heads * c.head_dim;
  const std::int64_t kv = c.num_key_value_heads * c.head_dim;
  for (const auto& [name, rows] :
       {std::pair{"q_proj", q}, std::pair{"k_proj", kv}, std::pair{"v_proj", kv}}) {
    const std::string full = "self_attn." + std::string(name) + suffix;
    add(full + ".weight", {rows, c.hidden_size});
    if (c.attention_bias) add(full + ".bias", {rows});
  }
  add("self_attn.o_proj" + suffix + ".weight", {c.hidden_size, q});
  if (c.qk_norm) {
    add("self_attn.q_norm" + suffix + ".weight", {c.head_dim});
    add("self_attn.k_norm" + suffix + ".weight", {c.head_dim});
  }
  add("mlp" + suffix + ".gate_proj.weight", {c.intermediate_size, c.hidden_size});
  add("mlp" + suffix + ".up_proj.weight", {c.intermediate_size, c.hidden_size});
  add("mlp" + suffix + ".down_proj.weight", {c.hidden_size, c.intermediate_size});
  add("input_layernorm" + suffix + ".weight", {c.hidden_size});
  add("post_attention_layernorm" + suffix + ".weight", {c.hidden_size});
  return tensors;
}

Tensor tensor(const NamedTensors& tensors, const std::string& name) {
  const auto found =
      std::ranges::find(tensors, "layers.0." + name, &NamedTensors::value_type::first);
  REQUIRE(found != tensors.end());
  return found->second;
}

// Writes the tensors and opens them.
Weights weights_of(const test::Folder& folder, const NamedTensors& tensors) {
  write_safetensors(folder / "model.safetensors", tensors);
  return Weights::open(folder / "model.safetensors", at::kCPU, at::kFloat);
}

void check_values(const QwenLayer& layer, const NamedTensors& from, const QwenConfig& c,
                  const std::string& suffix) {
  const auto packed = [&](std::initializer_list<const char*> names, const char* leaf) {
    std::vector<Tensor> parts;
    for (const char* name : names)
      parts.push_back(tensor(from, "self_attn." + (name + suffix) + leaf));
    return at::cat(parts);
  };
  CHECK(equal_bits(layer.qkv_proj.values, packed({"q_proj", "k_proj", "v_proj"}, ".weight")));
  CHECK(layer.qkv_bias.defined() == c.attention_bias);
  if (c.attention_bias)
    CHECK(equal_bits(layer.qkv_bias, packed({"q_proj", "k_proj", "v_proj"}, ".bias")));
  CHECK(layer.q_norm.defined() == c.qk_norm);
  CHECK(layer.k_norm.defined() == c.qk_norm);
  if (c.qk_norm) {
    CHECK(equal_bits(layer.q_norm, tensor(from, "self_attn.q_norm" + suffix + ".weight")));
    CHECK(equal_bits(layer.k_norm, tensor(from, "self_attn.k_norm" + suffix + ".weight")));
  }
  CHECK(equal_bits(layer.o_proj.values, tensor(from, "self_attn.o_proj" + suffix + ".weight")));
  CHECK(equal_bits(layer.gate_up_proj.values,
                   at::cat({tensor(from, "mlp" + suffix + ".gate_proj.weight"),
                            tensor(from, "mlp" + suffix + ".up_proj.weight")})));
  CHECK(equal_bits(layer.down_proj.values, tensor(from, "mlp" + suffix + ".down_proj.weight")));
  CHECK(equal_bits(layer.input_layernorm, tensor(from, "input_layernorm" + suffix + ".weight")));
  CHECK(equal_bits(layer.post_attention_layernorm,
                   tensor(from, "post_attention_layernorm" + suffix + ".weight")));
}

}  // namespace

TEST_CASE("Qwen config: head_dim is the file's, or hidden_size over the heads") {
  const test::Folder folder;
  const QwenConfig derived = config_of(folder, "{}", kQwen2);
  CHECK(derived.head_dim == 12);
  CHECK(derived.q_width() == 48);
  CHECK(derived.kv_width() == 24);
  CHECK(derived.attention_bias);
  CHECK_FALSE(derived.qk_norm);
  CHECK(derived.mrope_section.empty());
  const QwenConfig given = config_of(folder, R"({"head_dim": 16, "rope_theta": 5e5})", kQwen3);
  CHECK(given.head_dim == 16);
  CHECK(given.q_width() == 64);  // not hidden_size
  CHECK(given.qkv_width() == 128);
  CHECK(given.kv_shape().head_dim == 16);
  CHECK(given.rope_theta == 5e5);
  CHECK_FALSE(given.attention_bias);
  CHECK(given.qk_norm);
  const char* section = R"({"rope_scaling": {"type": "mrope", "mrope_section": [2, 2, 2]}})";
  CHECK(config_of(folder, section, kMrope).mrope_section == std::vector<std::int64_t>{2, 2, 2});
}

TEST_CASE("Qwen config: what does not fit is refused by key") {
  CHECK(error_of(R"({"num_attention_heads": 5})", kQwen2) ==
        "hidden_size 48 does not divide into 5 heads of even size");
  CHECK(error_of(R"({"head_dim": 7})", kQwen3) == "head_dim: found 7, expected an even number");
  CHECK(error_of(R"({"head_dim": "8"})", kQwen3) ==
        "head_dim: found \"8\", expected a whole number");
  CHECK(error_of(R"({"num_key_value_heads": 3})", kQwen3) ==
        "num_attention_heads 4 is no multiple of num_key_value_heads 3");
  CHECK(error_of(R"({"vocab_size": null})", kQwen3) == "vocab_size: not given; expected a number");
  CHECK(error_of(R"({"attention_bias": true})", kQwen3) ==
        "attention_bias: found true, expected false");
  CHECK(error_of(R"({"rope_scaling": {"type": "yarn"}})", kQwen3) ==
        "rope_scaling: found {\"type\":\"yarn\"}, expected none");
  CHECK(error_of("{}", kMrope) ==
        "rope_scaling.mrope_section: found none, expected three numbers with the sum 6, half of "
        "head_dim");
  CHECK(error_of(R"({"rope_scaling": {"mrope_section": [2, 2, 3]}})", kMrope) ==
        "rope_scaling.mrope_section: found [2,2,3], expected three numbers with the sum 6, half of "
        "head_dim");
  CHECK(error_of(R"({"rope_scaling": {"mrope_section": [2, 4]}})", kMrope) ==
        "rope_scaling.mrope_section: found [2,4], expected three numbers with the sum 6, half of "
        "head_dim");
  CHECK(error_of(R"({"rope_scaling": {"type": "yarn", "mrope_section": [2, 2, 2]}})", kMrope) ==
        "rope_scaling.type: found \"yarn\", expected an mrope_section alone");
  const char* interleaved =
      R"({"rope_scaling": {"mrope_section": [2, 2, 2], "mrope_interleaved": true}})";
  CHECK(error_of(interleaved, kMrope) ==
        "rope_scaling.mrope_interleaved: found true, expected an mrope_section alone");
}

TEST_CASE("a layer of Qwen2, of Qwen3 and with a suffix: shapes, values, nothing left unread") {
  for (const auto& [changes, parts, suffix] :
       {std::tuple{"{}", kQwen2, ""}, std::tuple{R"({"head_dim": 16})", kQwen3, ""},
        std::tuple{R"({"head_dim": 8})", kMrope, "_moe_gen"}}) {
    CAPTURE(changes);
    const test::Folder folder;
    QwenParts without_mrope = parts;
    without_mrope.mrope = false;
    const QwenConfig c = config_of(folder, changes, without_mrope);
    const NamedTensors tensors = layer_tensors(c, suffix);
    const Weights weights = weights_of(folder, tensors);
    const QwenLayer layer = QwenLayer::load(weights.scope("layers.0"), c, suffix);
    CHECK(layer.qkv_proj.values.sizes() == at::IntArrayRef({8 * c.head_dim, 48}));
    CHECK(layer.o_proj.values.sizes() == at::IntArrayRef({48, 4 * c.head_dim}));
    check_values(layer, tensors, c, suffix);
    CHECK_NOTHROW(weights.require_all_read());
    // The same in one buffer.
    const Tensor buffer =
        at::empty({QwenLayer::matrix_bytes(c, {at::kFloat})}, at::TensorOptions(at::kByte));
    const QwenLayer packed = QwenLayer::load(weights.scope("layers.0"), c, suffix, {}, buffer);
    check_values(packed, tensors, c, suffix);
    CHECK(packed.o_proj.values.storage().data() == buffer.storage().data());
    const std::int64_t values = 8 * c.head_dim * 48 + 48 * 4 * c.head_dim + 3 * 80 * 48;
    CHECK(buffer.size(0) >= 4 * values);
    CHECK(buffer.size(0) < 4 * values + 4 * 512);
  }
}

TEST_CASE("a quantised layer whose heads are wider than hidden_size") {
  const test::Folder folder;
  const QwenConfig c = config_of(folder, R"({"head_dim": 16})", kQwen3);
  const NamedTensors tensors = layer_tensors(c);
  const Weights layer = weights_of(folder, tensors).scope("layers.0");
  for (const Quantization kind : {Quantization::fp8, Quantization::int8}) {
    const QwenLayer found = QwenLayer::load(layer, c, "", {kind});
    const Tensor expected = tensor(tensors, "self_attn.o_proj.weight");  // [48, 64]
    CHECK(found.o_proj.scales.sizes() == at::IntArrayRef({48}));
    const Tensor again = found.o_proj.values.to(at::kFloat) * found.o_proj.scales.unsqueeze(1);
    CHECK((again - expected).norm().item<double>() < 0.03 * expected.norm().item<double>());
    CHECK(found.qkv_proj.scales.sizes() == at::IntArrayRef({128}));
  }
}

TEST_CASE("a layer that does not fit its config is refused by name") {
  const test::Folder folder;
  const QwenConfig c = config_of(folder, R"({"head_dim": 16})", kQwen3);
  const Weights layer = weights_of(folder, layer_tensors(c)).scope("layers.0");
  const auto error = [&](const QwenConfig& other) {
    return message_of([&] { QwenLayer::load(layer, other); });
  };
  CHECK(error(c) == "no error");
  QwenConfig narrow = c;
  narrow.head_dim = 12;
  CHECK(error(narrow).find("layers.0.self_attn.") != std::string::npos);
  QwenConfig biased = c;
  biased.attention_bias = true;
  CHECK(error(biased).find("layers.0.self_attn.q_proj.bias") != std::string::npos);
  CHECK(message_of([&] { QwenLayer::load(layer, c, "_moe_gen"); }).find("_moe_gen") !=
        std::string::npos);
}

TEST_CASE("rope_angles: three positions of a row, each for its part of the head") {
  for (const std::vector<std::int64_t>& section :
       {std::vector<std::int64_t>{2, 3, 3}, {16, 24, 24}}) {
    CAPTURE(section[0]);
    QwenConfig c;
    c.mrope_section = section;
    c.head_dim = 2 * (section[0] + section[1] + section[2]);
    const Tensor ids =
        at::tensor({0, 5, 1000, 1000, 0, 5, 3, 47, 0, 5, 11, 2}, at::kLong).view({3, 4});
    const Tensor angles = rope_angles(ids, c);
    REQUIRE(angles.sizes() == at::IntArrayRef({4, c.head_dim / 2}));
    // The doubled sections cut a whole head into six chunks, chunk i takes row i mod 3; angle d of
    // the head is of frequency d mod head_dim / 2.
    std::int64_t begin = 0;
    for (std::size_t chunk = 0; chunk < 6; ++chunk) {
      for (std::int64_t d = begin; d < begin + section[chunk % 3]; ++d) {
        const std::int64_t half = d % (c.head_dim / 2);
        for (std::int64_t row = 0; row < 4; ++row) {
          const auto id = ids[static_cast<std::int64_t>(chunk % 3)][row].item<std::int64_t>();
          const double exact =
              static_cast<double>(id) * std::pow(c.rope_theta, -2.0 * static_cast<double>(half) /
                                                                   static_cast<double>(c.head_dim));
          CHECK(angles[row][half].item<double>() == doctest::Approx(exact).epsilon(1e-6));
        }
      }
      begin += section[chunk % 3];
    }
    CHECK(begin == c.head_dim);
    // One position for all three is the plain form, bit for bit.
    const Tensor line = at::tensor({0, 1, 77, 32767}, at::kLong);
    CHECK(equal_bits(rope_angles(line.expand({3, 4}), c), rope_angles(line, c)));
  }
}

TEST_CASE("rope_angles: ids that do not fit the config are a programmer's error") {
  QwenConfig c;
  const Tensor three = at::zeros({3, 4}, at::kLong);
  CHECK_THROWS_AS(rope_angles(three, c), c10::Error);  // no mrope_section
  c.mrope_section = {16, 24, 23};
  CHECK_THROWS_AS(rope_angles(three, c), c10::Error);  // of another head_dim
  c.mrope_section = {16, 24, 24};
  CHECK_NOTHROW(rope_angles(three, c));
  CHECK_THROWS_AS(rope_angles(at::zeros({2, 4}, at::kLong), c), c10::Error);
  CHECK_THROWS_AS(rope_angles(at::zeros({4}), c), c10::Error);
}

TEST_CASE("a plan at positions of its own") {
  QwenConfig c;
  c.hidden_size = 64;
  c.num_hidden_layers = 1;
  c.num_attention_heads = 4;
  c.num_key_value_heads = 2;
  c.head_dim = 16;
  c.mrope_section = {2, 3, 3};
  const KvCache cache(c.kv_shape(), 2, 32, at::kFloat);
  const std::vector<MotSample> samples = {{3, 9, 4, 2}, {5, 20, 4, 2}};
  const MotPlan plain = plan_image_block(samples, 0, cache, c, at::kFloat);
  // Of each sample its start marker, its latents and its end marker.
  const std::vector<Tensor> line = {at::full({3, 6}, 9, at::kLong),
                                    at::full({3, 6}, 20, at::kLong)};
  const MotPlan same = make_plan({samples, line, false}, 0, cache, c, at::kFloat);
  CHECK(equal_bits(same.cos, plain.cos));
  CHECK(equal_bits(same.sin, plain.sin));
  CHECK(equal_bits(same.slots, plain.slots));
  const std::vector<Tensor> ids = {line[0].clone(), line[1]};
  ids[0][1][1] = 2;  // of the first latent, the plan's first row
  const MotPlan moved = make_plan({samples, ids, false}, 0, cache, c, at::kFloat);
  const Tensor changed = (moved.cos != plain.cos).nonzero();  // [count, 2]
  CHECK(changed.select(1, 0).eq(0).all().item<bool>());
  CHECK(changed.select(1, 1).equal(at::tensor({2, 3, 4}, at::kLong)));
  const std::vector<Tensor> few = {line[0], line[1].narrow(1, 0, 5)};
  CHECK_THROWS_AS(make_plan({samples, few, false}, 0, cache, c, at::kFloat), c10::Error);
  const std::vector<MotSample> text = {{0, 7, 0, 3}, {2, 0, 0, 2}};
  const MotPlan counted = plan_text(text, 0, cache, c, at::kFloat);
  const std::vector<Tensor> counting = {at::tensor({7, 8, 9}, at::kLong),
                                        at::tensor({0, 1}, at::kLong)};
  const MotPlan given = make_plan({text, counting, true}, 0, cache, c, at::kFloat);
  CHECK(equal_bits(counted.cos, given.cos));
  CHECK(counted.causal == given.causal);
}

}  // namespace diptych
