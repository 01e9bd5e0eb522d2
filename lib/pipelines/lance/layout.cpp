#include "lib/pipelines/lance/layout.h"

#include <algorithm>
#include <string>

#include "lib/base/error.h"

namespace diptych {
namespace {

using Ids = std::vector<std::int64_t>;

struct TokenRange {
  std::int64_t begin = 0, end = 0;
  bool empty() const { return begin == end; }
};

LanceModality modality_of(LanceBlockKind kind) {
  switch (kind) {
    case LanceBlockKind::vit:
      return LanceModality::vit;
    case LanceBlockKind::source:
      return LanceModality::source;
    default:
      return LanceModality::target;
  }
}

LanceSplitMode mode_of(LanceBlockKind kind) {
  switch (kind) {
    case LanceBlockKind::vit:
      return LanceSplitMode::full;
    case LanceBlockKind::source:
      return LanceSplitMode::full_noise;
    default:
      return LanceSplitMode::noise;
  }
}

// The official code would take either for a block of the template.
void refuse_vision_tokens(const Ids& ids, std::size_t blocks, const LanceMarkers& markers) {
  const auto refuse = [&](std::int64_t id, std::string_view token) {
    if (std::ranges::count(ids, id) == static_cast<std::ptrdiff_t>(blocks)) return;
    throw InputError(Setting::of("prompt"),
                     "holds {}, which marks the place of a picture or clip; expected a text "
                     "without it",
                     token);
  };
  refuse(markers.vision_start, "<|vision_start|>");
  refuse(markers.video_pad, "<|video_pad|>");
}

void append_block(LanceLayout& layout, LanceBlockKind kind, const LanceGrid& grid,
                  const LanceMarkers& markers) {
  TORCH_CHECK(grid.t > 0 && grid.h > 0 && grid.w > 0, "[lance_layout] a grid of ", grid.t, "x",
              grid.h, "x", grid.w);
  layout.blocks.push_back({kind, grid, layout.tokens()});
  layout.ids.push_back(markers.vision_start);
  layout.ids.insert(layout.ids.end(), static_cast<std::size_t>(grid.rows()), markers.video_pad);
  layout.ids.push_back(markers.vision_end);
  layout.modality.resize(layout.ids.size(), modality_of(kind));
}

// Every block of three tokens becomes one of all its rows.
LanceLayout expand(const Ids& rendered, const LancePrompt& prompt, std::span<const LanceGrid> grids,
                   const LanceMarkers& markers) {
  LanceLayout layout;
  for (std::size_t i = 0; i < rendered.size(); ++i) {
    if (rendered[i] != markers.vision_start) {
      layout.ids.push_back(rendered[i]);
      layout.modality.push_back(LanceModality::text);
      continue;
    }
    if (i + 2 >= rendered.size() || rendered[i + 1] != markers.video_pad ||
        rendered[i + 2] != markers.vision_end) {
      throw InputError(Setting::of("prompt"),
                       "begins with a mark that joins the character before it, which is the "
                       "template's; expected another character first");
    }
    const std::size_t block = layout.blocks.size();
    append_block(layout, prompt.blocks[block], grids[block], markers);
    i += 2;
  }
  return layout;
}

// The first place where the ids of the caption stand in text. The official code looks for the
// tokens that it has alone, which need not be those that it has in the template.
TokenRange find_caption(const LanceLayout& layout, std::string_view caption,
                        const Tokenizer& tokenizer) {
  const Ids wanted = tokenizer.encode(caption);
  if (wanted.empty()) return {};
  const auto found = std::ranges::search(layout.ids, wanted);
  if (found.empty()) {
    const std::size_t first = caption.find_first_not_of(" \t\r\n");
    const bool breaks = caption.substr(0, first).find_first_of("\r\n") != std::string_view::npos;
    throw InputError(Setting::of("prompt"), "{}; expected a text that can stand in the template",
                     breaks ? "begins with a line break, which becomes one token with the line "
                              "break before it"
                            : "becomes other tokens in the template than alone");
  }
  const std::int64_t begin = found.begin() - layout.ids.begin();
  const TokenRange range{begin, begin + static_cast<std::int64_t>(wanted.size())};
  const auto in_text = [](LanceModality modality) { return modality == LanceModality::text; };
  if (!std::all_of(layout.modality.begin() + range.begin, layout.modality.begin() + range.end,
                   in_text)) {
    throw InputError(Setting::of("prompt"),
                     "is a token that ends a picture or clip; expected a "
                     "text");
  }
  return range;
}

// A run of text, cut where the caption begins and ends.
void append_text(std::vector<LanceSplit>& splits, TokenRange run, TokenRange caption) {
  const auto append = [&](std::int64_t begin, std::int64_t end, bool is_caption) {
    if (begin < end) splits.push_back({begin, end, LanceSplitMode::causal, {}, is_caption});
  };
  if (caption.empty() || caption.begin < run.begin || caption.begin >= run.end) {
    append(run.begin, run.end, false);
    return;
  }
  append(run.begin, caption.begin, false);
  append(caption.begin, caption.end, true);
  append(caption.end, run.end, false);
}

void append_splits(LanceLayout& layout, TokenRange caption) {
  std::fill(layout.modality.begin() + caption.begin, layout.modality.begin() + caption.end,
            LanceModality::caption);
  std::int64_t cursor = 0;
  for (std::size_t i = 0; i < layout.blocks.size(); ++i) {
    const LanceBlock& block = layout.blocks[i];
    append_text(layout.splits, {cursor, block.begin}, caption);
    layout.splits.push_back({block.begin, block.end(), mode_of(block.kind), i});
    cursor = block.end();
  }
  append_text(layout.splits, {cursor, layout.tokens()}, caption);
}

}  // namespace

LanceLayout LanceLayout::of(const LancePrompt& prompt, std::span<const LanceGrid> grids,
                            const Tokenizer& tokenizer) {
  TORCH_CHECK(grids.size() == prompt.blocks.size(), "[lance_layout] ", grids.size(), " grids for ",
              prompt.blocks.size(), " blocks");
  const LanceMarkers markers = LanceMarkers::of(tokenizer);
  const Ids rendered = tokenizer.encode(prompt.text);
  refuse_vision_tokens(rendered, prompt.blocks.size(), markers);
  LanceLayout layout = expand(rendered, prompt, grids, markers);
  append_splits(layout, find_caption(layout, prompt.caption, tokenizer));
  return layout;
}

LanceLayout LanceLayout::plain(std::string_view text, const LanceGrid& target,
                               const Tokenizer& tokenizer) {
  const LanceMarkers markers = LanceMarkers::of(tokenizer);
  LanceLayout layout;
  layout.ids = about(Setting::of("prompt"), [&] { return tokenizer.encode(text); });
  refuse_vision_tokens(layout.ids, 0, markers);
  layout.ids.insert(layout.ids.begin(), markers.bos);
  layout.ids.push_back(markers.eos);
  const TokenRange caption{0, layout.tokens()};
  layout.modality.resize(layout.ids.size(), LanceModality::caption);
  append_block(layout, LanceBlockKind::target, target, markers);
  append_splits(layout, caption);
  return layout;
}

LanceLayout LanceLayout::cut_for_answer(const Tokenizer& tokenizer) const {
  const Ids opening = tokenizer.encode("assistant\n");
  // As the official code looks for it: only the first and the last token are compared.
  const auto last = static_cast<std::int64_t>(opening.size()) - 1;
  const auto id = [&](std::int64_t i) { return ids[static_cast<std::size_t>(i)]; };
  std::int64_t found = 0;
  while (found + last < tokens() &&
         (id(found) != opening.front() || id(found + last) != opening.back()))
    ++found;
  const std::int64_t end = found + last + 1;
  if (end > tokens()) {
    throw InputError(Setting::of("prompt"),
                     "the answer's place, \"assistant\" and a line break, is not found in the "
                     "template; expected an answer that begins with a character");
  }
  LanceLayout cut;
  cut.ids.assign(ids.begin(), ids.begin() + end);
  cut.modality.assign(modality.begin(), modality.begin() + end);
  for (const LanceBlock& block : blocks)
    if (block.end() <= end) cut.blocks.push_back(block);
  for (LanceSplit split : splits) {
    split.end = std::min(split.end, end - 1);
    if (split.begin < split.end) cut.splits.push_back(split);
  }
  return cut;
}

LanceLayout LanceLayout::without_caption() const {
  LanceLayout rest;
  std::vector<std::int64_t> place;  // of each token among those that stay
  for (std::size_t i = 0; i < ids.size(); ++i) {
    place.push_back(rest.tokens());
    if (modality[i] == LanceModality::caption) continue;
    rest.ids.push_back(ids[i]);
    rest.modality.push_back(modality[i]);
  }
  place.push_back(rest.tokens());
  const auto moved = [&](std::int64_t token) { return place[static_cast<std::size_t>(token)]; };
  for (LanceBlock block : blocks) {
    block.begin = moved(block.begin);
    rest.blocks.push_back(block);
  }
  for (LanceSplit split : splits) {
    if (split.is_caption) continue;
    split.begin = moved(split.begin);
    split.end = moved(split.end);
    rest.splits.push_back(split);
  }
  return rest;
}

const LanceSplit* LanceLayout::target_split() const {
  const auto found = std::ranges::find(splits, LanceSplitMode::noise, &LanceSplit::mode);
  return found == splits.end() ? nullptr : &*found;
}

std::span<const LanceSplit> LanceLayout::context() const {
  const LanceSplit* target = target_split();
  const std::span<const LanceSplit> all = splits;
  return target == nullptr ? all : all.first(static_cast<std::size_t>(target - splits.data()));
}

std::int64_t LanceLayout::latent_rows() const {
  std::int64_t rows = 0;
  for (const LanceBlock& block : blocks)
    if (block.kind != LanceBlockKind::vit) rows += block.grid.rows();
  return rows;
}

}  // namespace diptych
