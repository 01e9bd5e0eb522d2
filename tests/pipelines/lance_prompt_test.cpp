// The prompt templates of Lance against the official strings. What the recorded cases render is
// lance_layout_test.cpp's part.
#include <doctest/doctest.h>
#include <fmt/format.h>

#include "lib/pipelines/lance/prompt.h"
#include "lib/text/byte_level_bpe.h"
#include "tests/pipelines/lance_cases.h"
#include "tests/support/folder.h"

namespace diptych {
namespace {

using Blocks = std::vector<LanceBlockKind>;
using Elements = std::vector<LanceElement>;

constexpr std::string_view kBlock = "<|vision_start|><|video_pad|><|vision_end|>";

LanceElement text(std::string value) {
  return {LanceMedium::text, std::move(value)};
}
const LanceElement kImage{LanceMedium::image, ""}, kVideo{LanceMedium::video, ""};

// What stands between two parts of a rendered template.
std::string between(const std::string& rendered, std::string_view before, std::string_view after) {
  const std::size_t begin = rendered.find(before) + before.size();
  return rendered.substr(begin, rendered.find(after, begin) - begin);
}
std::string system_of(const LancePrompt& prompt) {
  return between(prompt.text, "system\n", "<|im_end|>");
}
std::string user_of(const LancePrompt& prompt) {
  return between(prompt.text, "user\n", "<|im_end|>");
}

TEST_CASE("the system texts are the official ones") {
  const auto official = test::read_json(test::kLanceGoldens / "prompts.json");
  const auto system = [](LanceTask task, const LanceElement& medium) {
    return system_of(render_prompt(task, Elements{text("A cat."), medium}));
  };
  CHECK(system(LanceTask::image_edit, kImage) == official.at("image_edit").get<std::string>());
  CHECK(system(LanceTask::video_edit, kVideo) == official.at("video_edit").get<std::string>());
  CHECK(system(LanceTask::i2v, kImage) == official.at("i2v").get<std::string>());
  for (const LanceTask task : {LanceTask::t2i, LanceTask::t2v}) {
    const LancePrompt prompt = render_prompt(task, Elements{text("A cat.")});
    CHECK(system_of(prompt) == official.at(std::string(name_of(task))).get<std::string>());
  }
  for (const LanceTask task : {LanceTask::x2t_image, LanceTask::x2t_video}) {
    CHECK(official.at("example_x2t_instructions").at(std::string(name_of(task))) ==
          std::string(default_instruction(task)));
  }
}

TEST_CASE("a template is its parts and nothing around them") {
  const LancePrompt prompt = render_prompt(LanceTask::t2i, Elements{text("  A cat.\n")});
  CHECK(prompt.text.starts_with("<|im_start|>system\nDescribe the image by"));
  CHECK(prompt.text.ends_with(
      fmt::format("<|im_end|>\n<|im_start|>user\n  A cat.\n<|im_end|>\n<|im_start|>assistant\n"
                  "{}<|im_end|>",
                  kBlock)));
  CHECK(prompt.caption == "  A cat.\n");
  CHECK((prompt.blocks == Blocks{LanceBlockKind::target}));
  CHECK(render_prompt(LanceTask::t2v, {}).caption.empty());
}

TEST_CASE("a text that comes first goes behind the pictures, and no other") {
  using enum LanceBlockKind;
  const std::string twice = fmt::format("{0}{0}", kBlock);
  const LancePrompt usual = render_prompt(LanceTask::image_edit, Elements{text("a"), kImage});
  CHECK(user_of(usual) == twice + "a");
  CHECK((usual.blocks == Blocks{vit, source, target}));

  const LancePrompt behind = render_prompt(LanceTask::image_edit, Elements{kImage, text("a")});
  CHECK(user_of(behind) == twice + "a");
  CHECK(system_of(behind).starts_with("Describe the key features of the input text (color"));

  const LancePrompt three = render_prompt(
      LanceTask::video_edit, Elements{text("a"), text("b"), kVideo, text("c"), kImage});
  CHECK(user_of(three) == "b" + twice + "c" + twice + "a");
  CHECK(three.caption == "c");
  CHECK(system_of(three).starts_with("Describe the key features of the input image (color"));
  CHECK((three.blocks == Blocks{vit, source, vit, source, target}));
}

TEST_CASE("the picture of i2v is not in the template") {
  for (const Elements& elements : {Elements{text("a"), kImage}, Elements{kImage, text("a")}}) {
    const LancePrompt prompt = render_prompt(LanceTask::i2v, elements);
    CHECK(user_of(prompt) == "a");
    CHECK((prompt.blocks == Blocks{LanceBlockKind::target}));
  }
  const LancePrompt two = render_prompt(LanceTask::i2v, Elements{kImage, text("a"), text("b")});
  CHECK(user_of(two) == "ba");
  CHECK(two.caption == "b");
}

TEST_CASE("an edit needs a text, which may be empty") {
  CHECK(test::message_of([] { render_prompt(LanceTask::image_edit, Elements{kImage}); }) ==
        "--prompt: not given; expected one (may be \"\") for image_edit");
  const LancePrompt empty = render_prompt(LanceTask::image_edit, Elements{text(""), kImage});
  CHECK(empty.caption.empty());
}

TEST_CASE("text that is not UTF-8 is refused by the byte of that text") {
  const std::string expected = "--prompt: text is not valid UTF-8: byte 0xFF at offset 2";
  for (const LanceTask task : {LanceTask::t2i, LanceTask::image_edit}) {
    CHECK(test::message_of([&] {
            render_prompt(task, Elements{text("ab\xFF"), kImage});
          }) == expected);
  }
  CHECK(test::message_of([] { render_question({"Look.", "ab\xFF"}); }) == expected);
}

TEST_CASE("a question is behind its pictures") {
  const LancePrompt prompt = render_question({"Look.", "What is it?", "A cat."});
  CHECK(prompt.text ==
        fmt::format("<|im_start|>system\nLook.<|im_end|>\n<|im_start|>user\n{}What is it?"
                    "<|im_end|>\n<|im_start|>assistant\nA cat.<|im_end|>",
                    kBlock));
  CHECK((prompt.blocks == Blocks{LanceBlockKind::vit}));
  CHECK(prompt.caption.empty());
  const LancePrompt two = render_question({"Look.", ""}, 2);
  CHECK(user_of(two) == fmt::format("{0}{0}", kBlock));
  CHECK(two.blocks.size() == 2);
}

TEST_CASE("markers are the tokenizer's, or an error names what is missing") {
  const LanceMarkers markers = LanceMarkers::of(test::lance_tokenizer());
  CHECK(markers.bos == 601);
  CHECK(markers.eos == 602);
  CHECK(markers.vision_start == 609);
  CHECK(markers.vision_end == 610);
  CHECK(markers.video_pad == 613);
  BpeTables tables = read_bpe_files(test::kLanceGoldens / "checkpoint/Lance_3B");
  std::erase_if(tables.added, [](const auto& token) { return token.text == "<|video_pad|>"; });
  const auto without = make_byte_level_bpe(tables);
  CHECK(test::message_of([&] { LanceMarkers::of(*without); }) ==
        "the tokenizer has no token <|video_pad|>, expected Lance's");
}

}  // namespace
}  // namespace diptych
