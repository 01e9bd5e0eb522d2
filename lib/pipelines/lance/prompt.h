// What Lance reads as text: the prompt template of each task, and the tokens that the template
// uses. specs: lance.md sections 3 and 4; bytedance/Lance @4baeee0, data/system_prompt_render.py,
// data/common.py (generate_system_prompt) and data/datasets_custom/validation_dataset.py.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lib/base/choices.h"
#include "lib/text/tokenizer.h"

namespace diptych {

enum class LanceTask { t2i, t2v, i2v, image_edit, video_edit, x2t_image, x2t_video };
template <>
inline constexpr std::array<std::string_view, 7> kChoiceNames<LanceTask> = {
    "t2i", "t2v", "i2v", "image_edit", "video_edit", "x2t_image", "x2t_video"};

constexpr bool is_edit(LanceTask task) {
  return task == LanceTask::image_edit || task == LanceTask::video_edit;
}
constexpr bool is_question(LanceTask task) {
  return task == LanceTask::x2t_image || task == LanceTask::x2t_video;
}

enum class LanceMedium { text, image, video };
template <>
inline constexpr std::array<std::string_view, 3> kChoiceNames<LanceMedium> = {"text", "image",
                                                                              "video"};

// One part of a request, in the user's order.
struct LanceElement {
  LanceMedium medium = LanceMedium::text;
  std::string text;  // of a text
};

// The blocks of visual tokens: a source as the vision tower sees it, its latent, and the latent
// that is denoised.
enum class LanceBlockKind { vit, source, target };

struct LancePrompt {
  std::string text;  // rendered; every block is <|vision_start|><|video_pad|><|vision_end|>
  std::vector<LanceBlockKind> blocks;  // in the order of the text
  std::string caption;  // the text that the unconditional branch goes without; "": nothing
};

// The template of a task that generates. The user's content is every element in order, but that a
// text which comes first goes to the end. A source of an edit is two blocks, ViT and latent; the
// picture of i2v is none, because it is read as the first latent frame. The caption is the last
// text. The system text of an edit names the medium of the last element ("text" if a text is last).
// Throws InputError for an edit or i2v without a text, and for text that is not UTF-8 (says the
// byte of that text); c10::Error for x2t tasks.
LancePrompt render_prompt(LanceTask task, std::span<const LanceElement> elements);

struct LanceQuestion {
  std::string instruction;  // the system text
  std::string question;     // may be empty
  std::string answer = {};  // of recorded cases: the model never sees it
};
// The template of an x2t task: `media` ViT blocks, then the question. Throws InputError for text
// that is not UTF-8.
LancePrompt render_question(const LanceQuestion& question, std::int64_t media = 1);

// The system text of the official examples.
std::string_view default_instruction(LanceTask x2t_task);

// Ids of the tokens that the template uses.
struct LanceMarkers {
  std::int64_t bos = 0, eos = 0;  // <|im_start|>, <|im_end|>
  std::int64_t vision_start = 0, vision_end = 0;
  std::int64_t video_pad = 0;  // every visual token, of pictures and of clips

  // Throws InputError naming the token that the tokenizer lacks.
  static LanceMarkers of(const Tokenizer& tokenizer);
};

}  // namespace diptych
