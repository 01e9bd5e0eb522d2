// Chats and tokens of Qwen3 against the recorded case of the official tokenizer.
#include <string>
#include <vector>

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include "lib/base/utf8.h"
#include "lib/text/byte_level_bpe.h"
#include "lib/text/chat_messages.h"
#include "lib/text/nfc.h"
#include "tests/support/folder.h"
#include "tests/support/skip.h"
#include "tests/text/support.h"

using namespace diptych;

namespace {

using Json = nlohmann::ordered_json;
using Ids = std::vector<std::int64_t>;

const std::filesystem::path kGoldens =
    std::filesystem::path(DIPTYCH_SOURCE_DIR) / "tests/goldens/dflash";
const std::filesystem::path kTarget = kGoldens / "checkpoint_trained/target";

Json golden_case() {
  return Json::parse(read_file(kGoldens / "cases/tokenizer/case.json"));
}

// The lines of a file of messages.
std::string lines_of(const Json& chat) {
  std::string lines;
  if (chat.contains("tools")) lines += Json{{"tools", chat["tools"]}}.dump() + "\n";
  for (const Json& message : chat.at("messages")) lines += message.dump() + "\n\n";
  return lines;
}

ChatRequest read_chat(const Json& chat) {
  const test::Folder folder;
  ChatRequest request = read_chat_messages(folder.write("chat.jsonl", lines_of(chat)));
  request.add_generation_prompt = chat.at("add_generation_prompt");
  request.enable_thinking = chat.value("enable_thinking", true);
  return request;
}

void check_strings(bool plain) {
  const auto tokenizer = load_byte_level_bpe(kTarget);
  std::size_t checked = 0;
  const Json golden = golden_case();
  for (const Json& row : golden.at("strings")) {
    const std::string text = row.at("text");
    if ((check_utf8(text) < kFirstNormalised) != plain) continue;
    INFO(text);
    CHECK(tokenizer->encode(text) == row.at("ids").get<Ids>());
    ++checked;
  }
  CHECK(checked > 5);
}

std::string message_error(const std::string& lines) {
  const test::Folder folder;
  const auto file = folder.write("chat.jsonl", lines);
  std::string message = test::message_of([&] { read_chat_messages(file); });
  const std::string place = folder.path().string() + "/";
  if (message.starts_with(place)) message.erase(0, place.size());
  return message;
}

std::string golden_template() {
  const auto found = find_chat_template(kTarget);
  REQUIRE(found.has_value());
  return found->text;
}

}  // namespace

TEST_CASE("recorded chats are rendered as by the official template, and have its ids") {
  const auto tokenizer = load_byte_level_bpe(kTarget);
  std::size_t checked = 0;
  const Json golden = golden_case();
  for (const Json& chat : golden.at("chats")) {
    CAPTURE(chat.at("key").get<std::string>());
    const std::string rendered = render_qwen3_chat(read_chat(chat));
    CHECK(rendered == chat.at("rendered").get<std::string>());
    CHECK(tokenizer->encode(rendered) == chat.at("ids").get<Ids>());
    ++checked;
  }
  CHECK(checked == 7);
}

TEST_CASE("recorded strings have the ids of the official tokenizer") {
  check_strings(true);
}

TEST_CASE("recorded strings to be normalised have the ids of the official tokenizer" *
          doctest::test_suite("needs utf8proc")) {
  if (!can_normalise(kFirstNormalised)) return test::skip(kNoUtf8proc);
  check_strings(false);
}

TEST_CASE("special tokens are those that are marked so; thoughts are not among them") {
  const auto tokenizer = load_byte_level_bpe(kTarget);
  CHECK(tokenizer->is_special(*tokenizer->token_id("<|im_end|>")));
  CHECK(tokenizer->is_special(*tokenizer->token_id("<|video_pad|>")));
  CHECK_FALSE(tokenizer->is_special(*tokenizer->token_id("<think>")));
  CHECK_FALSE(tokenizer->is_special(*tokenizer->token_id("<tool_call>")));
  CHECK_FALSE(tokenizer->is_special(65));
  CHECK_FALSE(tokenizer->is_special(-1));
  CHECK_FALSE(tokenizer->is_special(100'000));
}

TEST_CASE("a thought behind the last question stays, one before it goes") {
  ChatRequest chat;
  chat.add_generation_prompt = false;
  chat.messages = {{ChatRole::user, "a"},
                   {ChatRole::assistant, "<think>\nx\n</think>\n\nb"},
                   {ChatRole::user, "c"},
                   {ChatRole::assistant, "<think>y</think>d"},
                   {ChatRole::system, "be brief"}};
  CHECK(render_qwen3_chat(chat) ==
        "<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\nb<|im_end|>\n"
        "<|im_start|>user\nc<|im_end|>\n"
        "<|im_start|>assistant\n<think>\ny\n</think>\n\nd<|im_end|>\n"
        "<|im_start|>system\nbe brief<|im_end|>\n");
}

TEST_CASE("JSON of tools is written as Python writes it") {
  ChatRequest chat;
  chat.messages = {{ChatRole::user, "a"},
                   {ChatRole::assistant, "b", {}, Json::parse(R"([{"name": "f", "arguments": "{}"},
                     {"function": {"name": "g", "arguments": {"x": [1, 2.5, "\u00e9"]}}}])")}};
  chat.add_generation_prompt = false;
  CHECK(render_qwen3_chat(chat).ends_with(
      "b\n<tool_call>\n{\"name\": \"f\", \"arguments\": {}}\n</tool_call>\n"
      "<tool_call>\n{\"name\": \"g\", \"arguments\": {\"x\": [1, 2.5, \"\u00e9\"]}}\n</tool_call>"
      "<|im_end|>\n"));
  chat.messages.back().tool_calls = Json::parse(R"([{"arguments": {}}])");
  CHECK(test::message_of([&] { render_qwen3_chat(chat); }) ==
        "tool_calls: found {\"arguments\":{}}, expected a function with a name");
}

TEST_CASE("files of messages that are none are refused with their line") {
  CHECK(message_error("") == "chat.jsonl: holds no message");
  CHECK(message_error("\n \n{\"role\": \"user\"}") ==
        "chat.jsonl:3: content: not given; expected a text");
  CHECK(message_error("{\"role\": \"me\", \"content\": \"\"}") ==
        "chat.jsonl:1: role: found \"me\", expected system, user, assistant, tool");
  CHECK(message_error("{\"role\": \"user\", \"content\": 3}") ==
        "chat.jsonl:1: content: found 3, expected a text");
  CHECK(message_error("{\"role\": \"user\", \"content\": \"\", \"name\": \"x\"}") ==
        "chat.jsonl:1: unknown key 'name'; expected role, content, reasoning_content, "
        "tool_calls, or tools alone");
  CHECK(message_error("{\"role\": \"user\", \"content\": \"\", \"tool_calls\": []}") ==
        "chat.jsonl:1: tool_calls: is of an assistant, found the role user");
  CHECK(message_error("[1]") == "chat.jsonl:1: expected an object with role and content");
  CHECK(message_error("{\"tools\": 1}") == "chat.jsonl:1: tools: found 1, expected a list");
  CHECK(message_error("{\"role\": \"user\"").starts_with("chat.jsonl:1"));
}

TEST_CASE("a template is Qwen3's by what stands in it, blanks aside") {
  const std::string own = golden_template();
  CHECK(missing_in_qwen3_template(own).empty());
  std::string wide = own;
  for (std::size_t at = 0; (at = wide.find("\n", at)) != std::string::npos; at += 3)
    wide.replace(at, 1, "\n \t");
  CHECK(missing_in_qwen3_template(wide).empty());
  // Qwen2.5 has a system prompt of its own, and no switch for thoughts.
  std::string other = own;
  other.replace(other.find("enable_thinking is false"), 24, "enable_thinking is true");
  CHECK(missing_in_qwen3_template(other) == "ifenable_thinkingisdefinedandenable_thinkingisfalse");
  CHECK_FALSE(missing_in_qwen3_template("").empty());
}

TEST_CASE("a template may stand in a file of its own, or in a list") {
  const test::Folder folder;
  CHECK_FALSE(find_chat_template(folder.path()).has_value());
  folder.write("tokenizer_config.json", R"({"chat_template": [{"name": "rag", "template": "a"},
    {"name": "default", "template": "b"}]})");
  CHECK(find_chat_template(folder.path())->text == "b");
  folder.write("tokenizer_config.json", R"({"eos_token": "x"})");
  CHECK_FALSE(find_chat_template(folder.path()).has_value());
  const auto file = folder.write("chat_template.jinja", "c");
  CHECK(find_chat_template(folder.path())->text == "c");
  CHECK(find_chat_template(folder.path())->place == file.string());
}
