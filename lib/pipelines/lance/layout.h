// The sequence that Lance reads: its tokens, its visual blocks, and the splits in which it is read.
// specs: lance.md sections 4 and 4.1; bytedance/Lance @4baeee0, data/system_prompt_render.py
// (expand_and_index_by_token_ids_new) and validation_dataset.py (process_text_template).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "lib/base/choices.h"
#include "lib/pipelines/lance/prompt.h"
#include "lib/pipelines/lance/sizes.h"

namespace diptych {

// How the tokens of a split attend. causal: to themselves and what is before them. All others: to
// their whole block and what is before it.
enum class LanceSplitMode {
  causal,
  full,        // a ViT block
  full_noise,  // the latent of a source
  noise,       // the target, which nothing else attends to
};
template <>
inline constexpr std::array<std::string_view, 4> kChoiceNames<LanceSplitMode> = {
    "causal", "full", "full_noise", "noise"};

enum class LanceModality : std::int64_t { text = -1, caption = 0, target = 1, source = 2, vit = 4 };

// Between its <|vision_start|> and <|vision_end|>.
struct LanceBlock {
  LanceBlockKind kind = LanceBlockKind::target;
  LanceGrid grid;
  std::int64_t begin = 0;  // token of its <|vision_start|>

  std::int64_t first_row() const { return begin + 1; }
  std::int64_t end() const { return begin + grid.rows() + 2; }  // behind its <|vision_end|>
};

// Tokens that are read in one call; a block's split has both of its markers.
struct LanceSplit {
  std::int64_t begin = 0, end = 0;  // tokens
  LanceSplitMode mode = LanceSplitMode::causal;
  std::optional<std::size_t> block;  // index among the layout's blocks
  bool is_caption = false;

  std::int64_t tokens() const { return end - begin; }
  // The rows between the markers use the generation expert; markers and all else the plain one.
  bool has_latents() const {
    return mode == LanceSplitMode::full_noise || mode == LanceSplitMode::noise;
  }
  bool operator==(const LanceSplit&) const = default;
};

struct LanceLayout {
  std::vector<std::int64_t> ids;        // all tokens; visual ones are <|video_pad|>
  std::vector<LanceModality> modality;  // of each
  std::vector<LanceBlock> blocks;       // in order
  std::vector<LanceSplit> splits;       // in order, without gaps

  // `grids`: one for each block of the prompt. The caption is where the ids of its text are first
  // found, which for a short text may be inside the template. Throws InputError about the prompt
  // where it is not found (the line break before a text that begins with one becomes one token with
  // it), and where a text holds <|vision_start|> or <|video_pad|>.
  static LanceLayout of(const LancePrompt& prompt, std::span<const LanceGrid> grids,
                        const Tokenizer& tokenizer);
  // The sequence of t2i and t2v without a template (`--text_template false`): the text between
  // <|im_start|> and <|im_end|>, all of it the caption, then the target. Throws likewise.
  static LanceLayout plain(std::string_view text, const LanceGrid& target,
                           const Tokenizer& tokenizer);
  // Of an x2t sequence, what the model is shown: everything up to "assistant\n". The last token is
  // in no split: it is the first that is fed when the answer is written. Throws InputError where
  // "assistant\n" is not found.
  LanceLayout cut_for_answer(const Tokenizer& tokenizer) const;
  // The sequence without its caption. What remains of a split keeps its place.
  LanceLayout without_caption() const;

  std::int64_t tokens() const { return static_cast<std::int64_t>(ids.size()); }
  const LanceSplit* target_split() const;  // null: none
  // The splits that are read before the target, or before an answer is written.
  std::span<const LanceSplit> context() const;
  // Latent rows of source and target together: as many rows of noise are drawn, of which the target
  // takes the last.
  std::int64_t latent_rows() const;
};

}  // namespace diptych
