#include "tests/models/offload_cases.h"

#include <doctest/doctest.h>

#include "lib/tensor/noise.h"

namespace diptych::offload_cases {
namespace {

constexpr std::int64_t kSamples = 2, kPrompt = 6, kBlock = 12;

// A call of both samples at once; what it returns, and the cache rows it wrote.
std::vector<Tensor> call(const MotBackbone& model, const Case& on, KvCache& cache,
                         std::int64_t gen_rows, std::int64_t und_rows, std::uint64_t seed,
                         const MotObserver& observer, MotWanted wanted) {
  const auto options = at::TensorOptions().device(on.device).dtype(on.dtype);
  const std::unique_ptr<AttentionBackend> attention = make_attention("math", on.device);
  std::vector<MotSample> samples;
  for (std::int64_t i = 0; i < kSamples; ++i) {
    samples.push_back({cache.length(i), cache.length(i), gen_rows, und_rows});
  }
  MotPlan plan = gen_rows > 0 ? plan_image_block(samples, 0, cache, model.config, options)
                              : plan_text(samples, 0, cache, model.config, options);
  plan.wanted = wanted;
  at::Generator generator = cpu_generator(seed);
  const Tensor input =
      randn({kSamples * (gen_rows + und_rows), model.config.hidden_size}, generator).to(options);
  const MotRows out = model.forward(plan, input, cache, *attention, on.kernels, observer);
  for (std::int64_t i = 0; i < kSamples; ++i) cache.advance(i, gen_rows + und_rows);
  std::vector<Tensor> results;
  for (const Tensor& rows : {out.gen, out.und})
    results.push_back(rows.defined() ? rows.cpu() : Tensor());
  for (std::int64_t layer = 0; layer < model.config.num_hidden_layers; ++layer) {
    results.push_back(cache.keys(layer).cpu());
    results.push_back(cache.values(layer).cpu());
  }
  return results;
}

}  // namespace

QwenConfig small_config() {
  QwenConfig config;
  config.hidden_size = 64;
  config.num_hidden_layers = 5;
  config.num_attention_heads = 4;
  config.num_key_value_heads = 2;
  config.head_dim = 16;
  config.intermediate_size = 160;
  config.vocab_size = 32;
  return config;
}

MotBackbone load(const Case& on, const QwenConfig& config,
                 const std::optional<MotOffload>& offload) {
  return MotBackbone::load(Weights::dummy(on.device, on.dtype), config, offload,
                           {on.quantization, on.kernels});
}

std::vector<Tensor> run(const MotBackbone& model, const Case& on, const MotObserver& observer,
                        MotWanted wanted) {
  const auto options = at::TensorOptions().device(on.device).dtype(on.dtype);
  KvCache cache(model.config.kv_shape(), kSamples, 2 * kPrompt + 3 * kBlock + 8, options);
  std::vector<Tensor> results;
  const auto add = [&](std::int64_t gen_rows, std::int64_t und_rows) {
    const std::uint64_t seed = results.size();
    for (Tensor& value : call(model, on, cache, gen_rows, und_rows, seed, observer, wanted))
      results.push_back(std::move(value));
  };
  add(0, kPrompt);
  add(kBlock, 2);
  add(kBlock, 2);
  add(0, kPrompt);
  add(0, 1);
  add(kBlock, 2);
  return results;
}

void check_same(const std::vector<Tensor>& found, const std::vector<Tensor>& expected) {
  REQUIRE(found.size() == expected.size());
  for (std::size_t i = 0; i < found.size(); ++i) {
    CAPTURE(i);
    REQUIRE(found[i].defined() == expected[i].defined());
    if (found[i].defined()) CHECK(found[i].equal(expected[i]));
  }
}

void check_wanted_rows(const Case& on) {
  const MotBackbone model = load(on, small_config());
  const std::vector<Tensor> all = run(model, on);
  const auto results = static_cast<std::size_t>(2 + 2 * model.config.num_hidden_layers);
  for (const MotWanted wanted : {MotWanted::generation, MotWanted::none}) {
    std::vector<Tensor> expected = all;
    for (std::size_t i = 0; i < expected.size(); i += results) {
      if (wanted == MotWanted::none) expected[i] = Tensor();
      expected[i + 1] = Tensor();
    }
    check_same(run(model, on, {}, wanted), expected);
    check_same(run(
                   model, on, [](std::string_view, const MotRows&) {}, wanted),
               all);
  }
}

void check_equal_to_resident(const Case& on) {
  const QwenConfig config = small_config();
  const std::vector<Tensor> expected = run(load(on, config), on);
  CHECK(expected.back().abs().max().item<double>() > 0.1);
  for (const auto& [resident_und, resident_gen] :
       {std::pair{0, 0}, std::pair{2, 3}, std::pair{5, 0}, std::pair{0, 5}}) {
    for (const std::int64_t slots : {2, 3, 4, 16}) {
      CAPTURE(resident_und);
      CAPTURE(resident_gen);
      CAPTURE(slots);
      const MotBackbone model = load(on, config, MotOffload{resident_und, resident_gen, slots});
      CHECK(model.layers.streams({true, false}) == (resident_und < 5));
      CHECK(model.layers.streams({false, true}) == (resident_gen < 5));
      check_same(run(model, on), expected);
      check_same(run(model, on), expected);
    }
  }
}

}  // namespace diptych::offload_cases
