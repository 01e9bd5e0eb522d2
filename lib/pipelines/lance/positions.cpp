#include "lib/pipelines/lance/positions.h"

#include <algorithm>

namespace diptych {
namespace {

constexpr std::int64_t kStepsPerFrame = 2;    // tokens_per_second, at one second a step of t
constexpr std::int64_t kFirstVitTime = 1000;  // of an edit's sources

// ids [3, end - begin] of a stretch of tokens.
Tensor stretch(const Tensor& ids, std::int64_t begin, std::int64_t end) {
  return ids.slice(1, begin, end);
}

// Text of `count` tokens from `start` on -> [3, count].
Tensor text_ids(std::int64_t start, std::int64_t count) {
  return at::arange(start, start + count, at::kLong).expand({3, count});
}

// -> [3, rows] in row-major order.
Tensor grid_ids(const LanceGrid& grid, std::int64_t base) {
  const auto axis = [&](std::int64_t size, std::int64_t step) {
    return at::arange(size, at::kLong) * step + base;
  };
  const std::vector<Tensor> axes = {axis(grid.t, kStepsPerFrame), axis(grid.h, 1), axis(grid.w, 1)};
  return at::stack(at::meshgrid(axes, "ij")).flatten(1);
}

std::int64_t largest_offset(const LanceGrid& grid) {
  return std::max({kStepsPerFrame * (grid.t - 1), grid.h - 1, grid.w - 1});
}

bool reads_source(const LanceLayout& layout) {
  return std::ranges::any_of(layout.splits, [](const LanceSplit& split) {
    return split.mode == LanceSplitMode::full || split.mode == LanceSplitMode::full_noise;
  });
}

// Tokens of all blocks of a kind -> int64 [n].
Tensor tokens_of(const LanceLayout& layout, LanceBlockKind kind) {
  std::vector<Tensor> tokens = {at::empty({0}, at::kLong)};
  for (const LanceBlock& block : layout.blocks)
    if (block.kind == kind) tokens.push_back(at::arange(block.begin, block.end(), at::kLong));
  return at::cat(tokens);
}

// What is read before the target or an answer, with `ids` [3, tokens] of the layout.
std::vector<LanceReadSplit> read_context(const LanceLayout& layout, const Tensor& ids,
                                         bool with_caption) {
  std::vector<LanceReadSplit> context;
  for (const LanceSplit& split : layout.context()) {
    if (split.is_caption && !with_caption) continue;
    context.push_back({split, stretch(ids, split.begin, split.end)});
  }
  return context;
}

Tensor next_ids(const LanceLayout& layout, const Tensor& ids) {
  const LanceSplit* target = layout.target_split();
  if (target == nullptr) return stretch(ids, layout.tokens() - 1, layout.tokens());
  return stretch(ids, target->begin, target->end);
}

}  // namespace

Tensor raw_positions(const LanceLayout& layout) {
  std::vector<Tensor> parts;
  std::int64_t token = 0, next = 0;
  for (const LanceBlock& block : layout.blocks) {
    const std::int64_t text = block.first_row() - token;  // its <|vision_start|> counts as text
    parts.push_back(text_ids(next, text));
    parts.push_back(grid_ids(block.grid, next + text));
    next += text + largest_offset(block.grid) + 1;
    token = block.first_row() + block.grid.rows();
  }
  parts.push_back(text_ids(next, layout.tokens() - token));
  return at::cat(parts, 1);
}

Tensor positions(const LanceLayout& layout) {
  Tensor ids = raw_positions(layout);
  if (layout.target_split() == nullptr || !reads_source(layout)) return ids;
  const Tensor vit = tokens_of(layout, LanceBlockKind::vit);
  if (vit.numel() > 0) {
    Tensor times = ids[0].index_select(0, vit);
    times += kFirstVitTime - times[0];
    ids[0].index_copy_(0, vit, times);
  }
  const Tensor source = tokens_of(layout, LanceBlockKind::source);
  const Tensor target = tokens_of(layout, LanceBlockKind::target);
  if (source.numel() == target.numel()) ids.index_copy_(1, target, ids.index_select(1, source));
  return ids;
}

LanceReading conditional_reading(const LanceLayout& layout) {
  const Tensor ids = positions(layout);
  return {read_context(layout, ids, /*with_caption=*/true), next_ids(layout, ids)};
}

LanceReading text_unconditional_reading(const LanceLayout& layout, LanceUncondIds ids) {
  const LanceLayout rest = layout.without_caption();
  const Tensor own = positions(rest);
  Tensor used = positions(layout);
  if (ids == LanceUncondIds::own) {
    std::vector<std::int64_t> kept;
    for (std::size_t i = 0; i < layout.modality.size(); ++i)
      if (layout.modality[i] != LanceModality::caption)
        kept.push_back(static_cast<std::int64_t>(i));
    used.index_copy_(1, at::tensor(kept, at::kLong), own);
  }
  return {read_context(layout, used, /*with_caption=*/false), next_ids(rest, own)};
}

}  // namespace diptych
