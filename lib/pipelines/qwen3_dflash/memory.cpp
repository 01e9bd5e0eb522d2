#include "lib/pipelines/qwen3_dflash/memory.h"

#include <algorithm>
#include <array>

#include "lib/models/matrices.h"
#include "lib/pipelines/drafting/block_attention.h"

namespace diptych {
namespace {

// Of the projections and norms of decoder layers.
std::int64_t layer_bytes(const QwenConfig& c, const MatrixFormat& format) {
  const std::array<MatrixShape, 4> shapes = {{{c.qkv_width(), c.hidden_size},
                                              {c.hidden_size, c.q_width()},
                                              {2 * c.intermediate_size, c.hidden_size},
                                              {c.hidden_size, c.intermediate_size}}};
  const std::int64_t norms = 2 * c.hidden_size + 2 * c.head_dim;
  return matrix_bytes(shapes, format) +
         norms * static_cast<std::int64_t>(c10::elementSize(format.dtype));
}

// Keys and values of one row in all layers.
std::int64_t row_bytes(const QwenConfig& c, std::int64_t element) {
  return c.num_hidden_layers * 2 * c.kv_width() * element;
}

// What a forward of so many rows holds beside its input: the widest moment of a layer.
std::int64_t forward_bytes(const QwenConfig& c, std::int64_t rows, std::int64_t element) {
  const std::int64_t width =
      3 * c.hidden_size + c.qkv_width() + c.q_width() + 3 * c.intermediate_size;
  return rows * width * element;
}

}  // namespace

std::optional<std::string> blocks_uncaptured(const Qwen3Checkpoint& checkpoint, std::int64_t block,
                                             const Runtime& runtime) {
  const QwenConfig* drafter = block > 1 ? &checkpoint.drafter()->config().decoder : nullptr;
  return why_not_on_device(checkpoint.config(), drafter, runtime, block);
}

namespace {

MemoryPlan plan_run(const Qwen3Checkpoint& checkpoint, const Qwen3RunSizes& sizes,
                    const Runtime& runtime, const MatrixFormat& format) {
  const Qwen3Config& target = checkpoint.config();
  const auto element = static_cast<std::int64_t>(c10::elementSize(runtime.dtype));
  const std::int64_t vocabulary = target.vocab_size * target.hidden_size * element;
  const std::int64_t block = drafted_block(checkpoint.drafter(), sizes.block);
  const std::int64_t rows = sizes.rows + sizes.texts * block;
  MemoryPlan plan;
  plan.held = {{"weights", target.num_hidden_layers * layer_bytes(target, format) +
                               (target.tie_word_embeddings ? 1 : 2) * vocabulary},
               {kKeyValueCachePart, rows * row_bytes(target, element)}};
  std::int64_t features = 0;
  if (block > 1) {
    const BlockDrafterConfig& drafter = checkpoint.drafter()->config();
    const auto layers = static_cast<std::int64_t>(drafter.target_layer_ids.size());
    features = layers * target.hidden_size * element;  // of a row
    plan.held.emplace_back(
        "drafter", drafter.decoder.num_hidden_layers * layer_bytes(drafter.decoder, format) +
                       layers * target.hidden_size * target.hidden_size * element);
    plan.held.emplace_back("drafter's cache", rows * row_bytes(drafter.decoder, element));
  }
  const std::int64_t verified = sizes.texts * block;
  plan.work = {{"prefill", forward_bytes(target, sizes.longest_prompt, element) +
                               sizes.longest_prompt * features},
               {"verification", forward_bytes(target, verified, element) +
                                    verified * (features + target.vocab_size * (4 + 2 * element))}};
  if (runtime.device.is_cpu()) return plan;
  // Graphs share the memory of one forward, and keep it while prompts are read.
  if (sizes.graphs && !blocks_uncaptured(checkpoint, block, runtime))
    plan.held.emplace_back("captured forwards", plan.work.back().second);
  constexpr std::int64_t kMebi = std::int64_t{1} << 20;
  plan.slack = 512 * kMebi + largest_part(plan.work).second / 4;
  return plan;
}

}  // namespace

MemoryCosts qwen3_costs(const Qwen3Checkpoint& checkpoint, const Qwen3RunSizes& sizes,
                        const Runtime& runtime) {
  const auto plan_with = [&checkpoint, &runtime, sizes](Quantization quantization) -> PlanFn {
    return [&checkpoint, &runtime, sizes, quantization](const MemoryChoice& choice, PixelSize) {
      MemoryPlan plan = plan_run(checkpoint, sizes, runtime, {runtime.dtype, quantization});
      plan.choice = choice;
      return plan;
    };
  };
  MemoryCosts costs;
  costs.plan = plan_with(runtime.quantization);
  if (runtime.quantization != Quantization::none) return costs;
  costs.forms.push_back(
      {{Setting::of("quantization", name_of(Quantization::int8))}, plan_with(Quantization::int8)});
  return costs;
}

}  // namespace diptych
