// A backbone whose generation rows ranks divide, by rows and by heads.
#include <doctest/doctest.h>
#include <fmt/format.h>

#include "lib/models/qwen_mot/row_share.h"
#include "lib/tensor/noise.h"
#include "tests/models/offload_cases.h"
#include "tests/support/rank_threads.h"

namespace diptych {
namespace {

constexpr std::int64_t kPrompt = 5;
const std::vector<std::int64_t> kRows = {11, 6};  // generation rows of each sample

struct Degrees {
  std::size_t ulysses, ring;
  std::int64_t heads, kv_heads;
};

Tensor random(at::IntArrayRef shape, std::uint64_t seed) {
  at::Generator generator = cpu_generator(seed);
  return randn(shape, generator);
}

// Two prompts, then a picture behind each: generation rows [17, hidden], before and after another
// call with the same plan.
class Painting {
 public:
  explicit Painting(const MotBackbone& model)
      : model_(model),
        attention_(make_attention("math", at::kCPU)),
        cache_(model.config.kv_shape(), 2, 32, at::TensorOptions(at::kFloat)) {
    const std::vector<MotSample> prompts(2, {0, 0, 0, kPrompt});
    const MotPlan plan = plan_text(prompts, 0, cache_, model.config, at::TensorOptions(at::kFloat));
    model.forward(plan, random({2 * kPrompt, model.config.hidden_size}, 1), cache_, *attention_,
                  {});
    for (std::int64_t i = 0; i < 2; ++i) cache_.advance(i, kPrompt);
  }

  std::vector<Tensor> run(Ranks* ranks) {
    std::vector<MotSample> samples;
    for (const std::int64_t rows : kRows) samples.push_back({kPrompt, kPrompt, rows, 2});
    MotPlan plan =
        plan_image_block(samples, 0, cache_, model_.config, at::TensorOptions(at::kFloat));
    std::shared_ptr<const MotRowShare> share;
    if (ranks != nullptr) {
      const MotHeads heads = {model_.config.num_attention_heads, model_.config.num_key_value_heads};
      share = std::make_shared<MotRowShare>(*ranks, kRows, heads, at::kCPU);
      plan = plan.divided(share);
    }
    std::vector<Tensor> found;
    for (const std::uint64_t seed : {2, 3}) {
      const Tensor gen = random({17, model_.config.hidden_size}, seed);
      const Tensor und = random({4, model_.config.hidden_size}, seed + 10);
      const Tensor x = at::cat({share ? share->cut(gen) : gen, und});
      const MotRows out = model_.forward(plan, x, cache_, *attention_, {});
      found.push_back(share ? share->join(out.gen) : out.gen);
      found.push_back(out.und);
    }
    return found;
  }

 private:
  const MotBackbone& model_;
  std::unique_ptr<AttentionBackend> attention_;
  KvCache cache_;
};

}  // namespace

TEST_CASE("generation rows that ranks divide are those of one process, by rows and by heads") {
  for (const Degrees& degrees : {Degrees{1, 2, 4, 2},
                                 {1, 3, 6, 3},
                                 {2, 1, 4, 2},
                                 {2, 1, 6, 3},
                                 {3, 1, 8, 4},
                                 {4, 1, 28, 4},
                                 {8, 1, 28, 4},
                                 {6, 1, 28, 4},
                                 {2, 1, 5, 1},
                                 {4, 1, 5, 1},
                                 {2, 2, 28, 4},
                                 {3, 2, 6, 2}}) {
    const std::string what = fmt::format("ulysses {} ring {} heads {}/{}", degrees.ulysses,
                                         degrees.ring, degrees.heads, degrees.kv_heads);
    CAPTURE(what);
    QwenConfig config = offload_cases::small_config();
    config.num_hidden_layers = 2;
    config.num_attention_heads = degrees.heads;
    config.num_key_value_heads = degrees.kv_heads;
    config.head_dim = 8;
    const MotBackbone model = offload_cases::load({}, config);
    const std::vector<Tensor> expected = Painting(model).run(nullptr);
    const std::size_t size = degrees.ulysses * degrees.ring;
    std::vector<std::vector<Tensor>> found(size), again(size);
    test::as_ranks({.ulysses = degrees.ulysses, .ring = degrees.ring}, size, [&](Ranks& ranks) {
      Painting painting(model);
      found[ranks.rank()] = painting.run(&ranks);
      again[ranks.rank()] = painting.run(&ranks);
    });
    CHECK_FALSE(at::allclose(expected[0], expected[2], 1e-2, 1e-2));
    for (std::size_t rank = 0; rank < size; ++rank) {
      CAPTURE(rank);
      for (std::size_t i = 0; i < expected.size(); ++i) {
        CHECK(at::allclose(found[rank][i], expected[i], 1e-4, 1e-5));
        CHECK(at::equal(found[rank][i], again[rank][i]));
        CHECK(at::equal(found[rank][i], found[0][i]));
      }
    }
  }
}

}  // namespace diptych
