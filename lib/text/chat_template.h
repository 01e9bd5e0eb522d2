// Conversations as Qwen3 reads them. A checkpoint's template is a Jinja program; this is what that
// of Qwen3 does, in C++, and a check that a checkpoint has no other. docs/models/qwen3.md has more.
// Qwen/Qwen3-8B, tokenizer_config.json, chat_template.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

#include "lib/base/choices.h"

namespace diptych {

struct ChatMessage {
  ChatRole role = ChatRole::user;
  std::string content;
  // Of an assistant: what it thought, where that does not stand in the content.
  std::optional<std::string> reasoning_content = {};
  nlohmann::ordered_json tool_calls = {};  // of an assistant: a list; null where there is none
};

struct ChatRequest {
  std::vector<ChatMessage> messages;  // at least one
  nlohmann::ordered_json tools = {};  // a list; null where there is none
  bool add_generation_prompt = true;  // the head of the answer
  bool enable_thinking = true;        // else an empty thought is put in front of the answer
};

// The text that the tokenizer reads. Thoughts of earlier turns are left out, those behind the last
// question stay. Throws InputError for a tool call without the name of its function.
std::string render_qwen3_chat(const ChatRequest& request);

// The template of a tokenizer's folder: in chat_template.jinja, or under the key chat_template of
// tokenizer_config.json; nothing where there is neither. Throws InputError for files that cannot be
// read.
struct FoundTemplate {
  std::string place;  // for messages
  std::string text;
};
std::optional<FoundTemplate> find_chat_template(const std::filesystem::path& folder);

// The first part of Qwen3's template that this one lacks, blanks aside; "" where it has them all.
// It is a judgement by what stands in the text: no template is run.
std::string_view missing_in_qwen3_template(std::string_view jinja);

}  // namespace diptych
