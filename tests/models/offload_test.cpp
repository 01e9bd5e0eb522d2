#include <stdexcept>

#include <doctest/doctest.h>

#include "lib/base/error.h"
#include "lib/tensor/safetensors.h"
#include "tests/models/offload_cases.h"
#include "tests/support/peak_bytes.h"
#include "tests/tensor/support.h"

namespace diptych {
namespace {

using offload_cases::Case;

std::int64_t resident_experts(const MotLayers& layers, bool gen) {
  std::int64_t count = 0;
  for (std::size_t i = 0; i < layers.size(); ++i) {
    const QwenLayer& expert = gen ? layers[i].gen : layers[i].und;
    CHECK(expert.input_layernorm.defined());
    CHECK(expert.qkv_proj.values.defined() == expert.down_proj.values.defined());
    count += expert.qkv_proj.values.defined() ? 1 : 0;
  }
  return count;
}

}  // namespace

TEST_CASE("experts that pass through slots give the bits of resident ones") {
  for (const Quantization quantization :
       {Quantization::none, Quantization::fp8, Quantization::int8}) {
    Case on;
    on.quantization = quantization;
    offload_cases::check_equal_to_resident(on);
  }
}

TEST_CASE("the last layer stops at the keys and values of rows that nobody wants") {
  for (const Quantization quantization : {Quantization::none, Quantization::fp8}) {
    Case on;
    on.quantization = quantization;
    offload_cases::check_wanted_rows(on);
  }
}

TEST_CASE("quantised projections are near the plain ones, and nothing else is touched") {
  const QwenConfig config = offload_cases::small_config();
  const Weights weights = Weights::dummy(at::kCPU, at::kFloat);
  const Weights layer = weights.scope("layers.3");
  const QwenLayer plain = QwenLayer::load(layer, config, "_moe_gen");
  for (const Quantization kind : {Quantization::fp8, Quantization::int8}) {
    const QwenLayer quantised = QwenLayer::load(layer, config, "_moe_gen", {kind});
    for (const LinearOperand QwenLayer::*matrix :
         {&QwenLayer::qkv_proj, &QwenLayer::o_proj, &QwenLayer::gate_up_proj,
          &QwenLayer::down_proj}) {
      const LinearOperand& found = quantised.*matrix;
      const Tensor expected = (plain.*matrix).values;
      CHECK_FALSE((plain.*matrix).scales.defined());
      CHECK(found.values.element_size() == 1);
      CHECK(found.scales.sizes() == at::IntArrayRef({expected.size(0)}));
      const Tensor again = found.values.to(at::kFloat) * found.scales.unsqueeze(1);
      const double error = ((again - expected).norm() / expected.norm()).item<double>();
      // 2.6 % of e4m3's values; int8 of 2.4 standard deviations in 64 or 160 columns: less.
      CHECK(error < (kind == Quantization::fp8 ? 0.03 : 0.01));
      CHECK(error > 0.003);
      // Row by row, whatever tensors they come from.
      CHECK(((again - expected).abs().amax(1) <= expected.abs().amax(1) * 0.04).all().item<bool>());
    }
    CHECK(quantised.qkv_bias.equal(plain.qkv_bias));
    CHECK(quantised.input_layernorm.equal(plain.input_layernorm));
    CHECK(quantised.q_norm.equal(plain.q_norm));
  }
}

TEST_CASE("of plain projections one tensor is there at a time while they are quantised") {
  QwenConfig config = offload_cases::small_config();
  config.num_hidden_layers = 12;
  const Weights weights = Weights::dummy(at::kCPU, at::kBFloat16);
  for (const Quantization kind : {Quantization::fp8, Quantization::int8}) {
    const std::int64_t expert = QwenLayer::matrix_bytes(config, {at::kBFloat16, kind});
    const std::int64_t plain = QwenLayer::matrix_bytes(config, {at::kBFloat16});
    CHECK(expert < 0.6 * static_cast<double>(plain));
    MotLayers layers;
    const std::int64_t peak =
        peak_bytes([&] { layers = MotLayers::load(weights, config, {}, {kind}); });
    CHECK(peak >= 24 * expert - 24 * 4096);  // less what aligns
    // The largest tensor in bfloat16, and what quantising it takes: float32 thrice, an inner
    // matrix.
    const std::int64_t largest = config.intermediate_size * config.hidden_size;
    CHECK(peak < 24 * expert + 16 * largest + 24 * 2048);
    CHECK(peak < 24 * plain);
  }
}

TEST_CASE("as many experts stay as were asked for, spread over the layers") {
  QwenConfig config = offload_cases::small_config();
  config.num_hidden_layers = 10;
  const MotLayers layers = offload_cases::load(Case{}, config, MotOffload{7, 5, 4}).layers;
  CHECK(resident_experts(layers, false) == 7);
  CHECK(resident_experts(layers, true) == 5);
  for (std::size_t i = 0; i + 1 < layers.size(); i += 2) {  // one of each pair of neighbours
    CHECK(layers[i].gen.qkv_proj.values.defined() != layers[i + 1].gen.qkv_proj.values.defined());
  }
  const MotLayers all = offload_cases::load(Case{}, config, MotOffload{10, 99, 4}).layers;
  CHECK_FALSE(all.streams({true, true}));
}

TEST_CASE("a call that ends early does not disturb the next one") {
  const Case on;
  const MotBackbone whole = offload_cases::load(on, offload_cases::small_config());
  const MotBackbone streamed =
      offload_cases::load(on, offload_cases::small_config(), MotOffload{0, 0, 3});
  const std::vector<Tensor> expected = offload_cases::run(whole, on);
  int seen = 0;
  const MotObserver stop = [&](std::string_view, const MotRows&) {
    if (++seen == 9) throw std::runtime_error("stop");
  };
  CHECK_THROWS_WITH(offload_cases::run(streamed, on, stop), "stop");
  offload_cases::check_same(offload_cases::run(streamed, on), expected);
}

TEST_CASE("experts are read straight into the buffers they are copied from") {
  // A checkpoint in another dtype than the run's: the buffers hold the converted weights.
  const test::Folder folder;
  const QwenConfig config = offload_cases::small_config();
  const Weights drawn = Weights::dummy(at::kCPU, at::kFloat);
  std::vector<std::pair<std::string, Tensor>> tensors;
  const auto add = [&](const std::string& name, at::IntArrayRef shape) {
    tensors.emplace_back(name, drawn.get(name, shape));
  };
  const std::int64_t hidden = config.hidden_size, inner = config.intermediate_size;
  const std::int64_t dim = config.head_dim, kv = config.num_key_value_heads * dim;
  for (std::int64_t i = 0; i < config.num_hidden_layers; ++i) {
    for (const std::string& suffix : {std::string(), std::string("_moe_gen")}) {
      const std::string layer = fmt::format("layers.{}.", i), attn = layer + "self_attn.";
      add(layer + "input_layernorm" + suffix + ".weight", {hidden});
      add(layer + "post_attention_layernorm" + suffix + ".weight", {hidden});
      add(attn + "q_proj" + suffix + ".weight", {hidden, hidden});
      add(attn + "q_proj" + suffix + ".bias", {hidden});
      for (const std::string& name : {attn + "k_proj" + suffix, attn + "v_proj" + suffix}) {
        add(name + ".weight", {kv, hidden});
        add(name + ".bias", {kv});
      }
      add(attn + "o_proj" + suffix + ".weight", {hidden, hidden});
      add(attn + "q_norm" + suffix + ".weight", {dim});
      add(attn + "k_norm" + suffix + ".weight", {dim});
      add(layer + "mlp" + suffix + ".gate_proj.weight", {inner, hidden});
      add(layer + "mlp" + suffix + ".up_proj.weight", {inner, hidden});
      add(layer + "mlp" + suffix + ".down_proj.weight", {hidden, inner});
    }
  }
  write_safetensors(folder / "model.safetensors", tensors);
  const Weights weights = Weights::open(folder / "model.safetensors", at::kCPU, at::kBFloat16);

  // Ten experts' buffers, three slots and what stays on the device; never a second copy of one.
  MotLayers layers;
  const std::int64_t peak = peak_bytes([&] {
    layers = MotLayers::load(weights, config, MotOffload{0, 0, 3});
  });
  const std::int64_t expert = QwenLayer::matrix_bytes(config, {at::kBFloat16});
  const std::int64_t small = 2 * (2 * hidden + (hidden + 2 * kv) + 2 * dim);
  CHECK(peak >= 13 * expert + 10 * small);
  CHECK(peak < 13 * expert + 10 * small + expert / 2);
  CHECK_NOTHROW(weights.require_all_read());

  const MotLayers resident = MotLayers::load(weights, config, {});
  for (std::size_t i = 0; i < resident.size(); ++i) {
    const MotLayer& layer = layers.acquire(i, {true, true});
    for (const auto& [found, expected] :
         {std::pair{layer.und, resident[i].und}, std::pair{layer.gen, resident[i].gen}}) {
      CHECK(found.qkv_proj.values.equal(expected.qkv_proj.values));
      CHECK(found.qkv_bias.equal(expected.qkv_bias));
      CHECK(found.o_proj.values.equal(expected.o_proj.values));
      CHECK(found.gate_up_proj.values.equal(expected.gate_up_proj.values));
      CHECK(found.down_proj.values.equal(expected.down_proj.values));
    }
    CHECK_FALSE(layer.und.o_proj.values.equal(layer.gen.o_proj.values));
    layers.release();
  }
}

TEST_CASE("text leaves the other expert where it is") {
  const QwenConfig config = offload_cases::small_config();
  const MotLayers layers = offload_cases::load(Case{}, config, MotOffload{0, 0, 4}).layers;
  const MotLayer& text = layers.acquire(0, {true, false});
  CHECK(text.und.qkv_proj.values.defined());
  CHECK_FALSE(text.gen.qkv_proj.values.defined());
  layers.release();
  const MotLayers und = offload_cases::load(Case{}, config, MotOffload{5, 0, 2}).layers;
  CHECK_FALSE(und.streams({true, false}));
  CHECK(und.acquire(3, {true, false}).und.o_proj.values.equal(und[3].und.o_proj.values));
  und.release();
}

}  // namespace diptych
