#include "lib/pipelines/lance/prompt.h"

#include <algorithm>

#include "lib/base/error.h"
#include "lib/base/utf8.h"

namespace diptych {
namespace {

constexpr std::string_view kBlock = "<|vision_start|><|video_pad|><|vision_end|>";

// The system texts to the letter; {0} is the vision word.
constexpr std::string_view kImageFromText =
    "Describe the image by detailing the color, quantity, text, shape, size, texture, spatial "
    "relationships of the objects and background:";
constexpr std::string_view kVideoFromText =
    "Describe the video by detailing the color, quantity, visible text, shape, size, texture, "
    "spatial relationships and motion/camera movements of the objects and background:";
constexpr std::string_view kEdit =  // its apostrophes are U+2019
    "Describe the key features of the input {0} (color, shape, size, texture, objects, "
    "background), then explain how the user\u2019s text instruction should alter or modify the "
    "{0}. Generate a new {0} that meets the user\u2019s requirements while maintaining consistency "
    "with the original input where appropriate.";

std::string render(std::string_view system, std::string_view user, std::string_view assistant) {
  return fmt::format(
      "<|im_start|>system\n{}<|im_end|>\n<|im_start|>user\n{}<|im_end|>\n"
      "<|im_start|>assistant\n{}<|im_end|>",
      system, user, assistant);
}

std::string system_text(LanceTask task, LanceMedium last) {
  if (task == LanceTask::t2i) return std::string(kImageFromText);
  if (!is_edit(task)) return std::string(kVideoFromText);
  return fmt::format(fmt::runtime(kEdit), name_of(last));
}

// Before it is inside the template, where the byte that is wrong would have another number.
void check_text(std::string_view text) {
  about(Setting::of("prompt"), [&] { check_utf8(text); });
}

void require_text(LanceTask task, std::span<const LanceElement> elements) {
  if (std::ranges::count(elements, LanceMedium::text, &LanceElement::medium) > 0) return;
  throw InputError(Setting::absent("prompt"), "not given; expected one (may be \"\") for {}",
                   name_of(task));
}

// t2i and t2v read one text, which may have come in pieces.
LancePrompt from_text(LanceTask task, std::span<const LanceElement> elements) {
  LancePrompt prompt;
  for (const LanceElement& element : elements) prompt.caption += element.text;
  check_text(prompt.caption);
  prompt.text = render(system_text(task, LanceMedium::text), prompt.caption, kBlock);
  prompt.blocks = {LanceBlockKind::target};
  return prompt;
}

}  // namespace

LancePrompt render_prompt(LanceTask task, std::span<const LanceElement> elements) {
  TORCH_CHECK(!is_question(task), "[render_prompt] task is ", std::string(name_of(task)));
  if (task == LanceTask::t2i || task == LanceTask::t2v) return from_text(task, elements);
  require_text(task, elements);
  LancePrompt prompt;
  std::string user, moved;
  bool first = true;
  for (const LanceElement& element : elements) {
    const bool is_text = element.medium == LanceMedium::text;
    if (is_text) {
      check_text(element.text);
      (first ? moved : user) += element.text;
      prompt.caption = element.text;
    } else if (is_edit(task)) {
      user.append(kBlock).append(kBlock);
      prompt.blocks.insert(prompt.blocks.end(), {LanceBlockKind::vit, LanceBlockKind::source});
    }
    // The picture of i2v has no place in the content, so a text behind it is still the first.
    if (is_text || is_edit(task)) first = false;
  }
  prompt.blocks.push_back(LanceBlockKind::target);
  prompt.text = render(system_text(task, elements.back().medium), user + moved, kBlock);
  return prompt;
}

LancePrompt render_question(const LanceQuestion& question, std::int64_t media) {
  for (const std::string& text : {question.instruction, question.question, question.answer})
    check_text(text);
  LancePrompt prompt;
  std::string user;
  for (std::int64_t i = 0; i < media; ++i) user += kBlock;
  prompt.blocks.assign(static_cast<std::size_t>(media), LanceBlockKind::vit);
  prompt.text = render(question.instruction, user + question.question, question.answer);
  return prompt;
}

std::string_view default_instruction(LanceTask x2t_task) {
  TORCH_CHECK(is_question(x2t_task), "[default_instruction] task is ",
              std::string(name_of(x2t_task)));
  return x2t_task == LanceTask::x2t_image ? "Look at the image carefully and answer the question."
                                          : "Watch the video carefully and answer the question.";
}

LanceMarkers LanceMarkers::of(const Tokenizer& tokenizer) {
  const auto id = [&](std::string_view token) {
    if (const auto found = tokenizer.token_id(token)) return *found;
    throw InputError("the tokenizer has no token {}, expected Lance's", token);
  };
  LanceMarkers markers;
  markers.bos = id("<|im_start|>");
  markers.eos = id("<|im_end|>");
  markers.vision_start = id("<|vision_start|>");
  markers.vision_end = id("<|vision_end|>");
  markers.video_pad = id("<|video_pad|>");
  return markers;
}

}  // namespace diptych
