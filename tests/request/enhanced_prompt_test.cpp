// The prompt of a request before and after it is rewritten; no model runs.
#include "lib/request/enhanced_prompt.h"

#include "lib/config/family_fields.h"
#include "lib/request/files_read.h"
#include "lib/request/request_checks.h"
#include "tests/support/clip_family.h"
#include "tests/support/folder.h"

namespace diptych {
namespace {

using test::message_of;

Options request(const std::string& prompt) {
  Options options = default_options(test::clip_family());
  options.enhance.on = true;
  options.enhance.model = "models/Qwen3-8B";
  options.run.inputs = {{prompt, {}}};
  return options;
}

TEST_CASE("an answer becomes one line without quotation marks around it") {
  CHECK(prompt_of_answer("a fox") == "a fox");
  CHECK(prompt_of_answer("\n  a red fox \r\n\n sits\tthere. \n") == "a red fox sits there.");
  CHECK(prompt_of_answer("\"a fox.\"") == "a fox.");
  CHECK(prompt_of_answer("\" a fox \"\n") == "a fox");
  CHECK(prompt_of_answer("\"Fox\" and \"Hen\"") == "\"Fox\" and \"Hen\"");
  CHECK(prompt_of_answer("the word \"Fox\"") == "the word \"Fox\"");
  CHECK(prompt_of_answer(" \n\t").empty());
  CHECK(prompt_of_answer("\"\"").empty());
  CHECK(prompt_of_answer("\"") == "\"");
}

TEST_CASE("a request is rewritten where that is asked for and something is painted") {
  Options options = request("a fox");
  CHECK(enhances(options));
  options.run.makes = MediaKind::text;
  CHECK_FALSE(enhances(options));
  options.run.makes = MediaKind::clip;
  CHECK(enhances(options));
  options.enhance.on = false;
  CHECK_FALSE(enhances(options));
}

TEST_CASE("one text is rewritten, by a model that is named") {
  const auto error = [](const Options& options) {
    return message_of([&] { require_enhanceable(options); });
  };
  CHECK(error(request("a fox")) == "no error");
  CHECK(error(request(" \n")) ==
        "--prompt: is empty; expected a text to rewrite with --enhance-prompt");
  Options two = request("a fox");
  two.run.inputs.push_back({"and a hen", {}});
  CHECK(error(two) == "--prompt: found 2 texts; expected one with --enhance-prompt");
  Options picture = request("make it red");
  picture.run.inputs.insert(picture.run.inputs.begin(),
                            InputItem::of_file(MediaKind::picture, "a.png"));
  CHECK(error(picture) == "no error");
  Options unnamed = request("a fox");
  unnamed.enhance.model.clear();
  CHECK(error(unnamed) ==
        "--enhancer: not given; expected the folder of a language model for --enhance-prompt");
}

TEST_CASE("the enhancer is told what fits the result, or what a file says") {
  Options options = request("a fox");
  options.run.makes = MediaKind::picture;
  CHECK(enhance_instructions(options) == kPictureInstructions);
  options.run.makes = MediaKind::clip;
  CHECK(enhance_instructions(options) == kClipInstructions);
  options.enhance.clip_instructions = "Be brief.";
  CHECK(enhance_instructions(options) == "Be brief.");
  const test::Folder folder;
  options.enhance.instructions = folder.write("how.txt", "\xEF\xBB\xBF\nSay it\nin verse.\r\n\n");
  CHECK(enhance_instructions(options) == "Say it\nin verse.");
  const std::string file = options.enhance.instructions.string();
  const auto error = [&] { return message_of([&] { enhance_instructions(options); }); };
  folder.write("how.txt", " \n");
  CHECK(error() == "--enhance-instructions: " + file + ": holds no text");
  folder.write("how.txt", "\xFF");
  CHECK(error() == "--enhance-instructions: " + file + ": not valid UTF-8: byte 0xFF at offset 0");
}

TEST_CASE("the request keeps the prompt that it had") {
  Options options = request("a fox");
  options.run.inputs.insert(options.run.inputs.begin(),
                            InputItem::of_file(MediaKind::picture, "a.png"));
  options.enhance.drafter = "models/Qwen3-8B-DFlash-b16/";
  options.enhance.max_tokens = 99;
  set_enhanced_prompt(options, "a red fox in the snow", "Be brief.");
  CHECK(options.run.prompt() == "a red fox in the snow");
  CHECK(options.run.inputs.front().image == "a.png");
  REQUIRE(options.enhanced);
  CHECK(options.enhanced->given == "a fox");
  CHECK(options.enhanced->enhancer == "Qwen3-8B");
  CHECK(options.enhanced->drafter == "Qwen3-8B-DFlash-b16");
  CHECK(options.enhanced->instructions == "Be brief.");
  CHECK(options.enhanced->max_tokens == 99);
}

TEST_CASE("what the enhancer reads is no place for a result") {
  const test::Folder folder;
  Options options = request("a fox");
  options.enhance.instructions = folder.write("how.txt", "Be brief.");
  options.enhance.model = folder.write("model/model.safetensors", "x").parent_path();
  const auto role = [&](const std::filesystem::path& file) {
    return role_of_file(options, file).value_or("none");
  };
  CHECK(role(folder.path() / "how.txt") == "the instructions of the enhancer");
  CHECK(role(folder.path() / "model" / "model.safetensors") == kModelFile);
  options.enhance.on = false;
  CHECK(role(folder.path() / "how.txt") == "none");
  CHECK(role(folder.path() / "model" / "model.safetensors") == "none");
}

TEST_CASE("flags of the enhancer have no meaning without it") {
  Options options = request("a fox");
  options.enhance.on = false;
  Resolved resolved = without_sources(std::move(options));
  resolved.note(field_index("enhancer"), "--enhancer");
  CHECK(message_of([&] { require_meaning(resolved, "--"); }) ==
        "--enhancer: given without --enhance-prompt");
  resolved.options.enhance.on = true;
  CHECK(message_of([&] { require_meaning(resolved, "--"); }) == "no error");
}

}  // namespace
}  // namespace diptych
