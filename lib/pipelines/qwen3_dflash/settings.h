// What only a request to a Qwen3 has.
#pragma once

#include <array>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "lib/base/choices.h"
#include "lib/pipelines/drafting/settings.h"

namespace diptych {

// chat: the prompt is what a user says, in the format that the model was trained on. raw: it is the
// text that the model goes on with.
enum class PromptFormat { chat, raw };
template <>
inline constexpr std::array<std::string_view, 2> kChoiceNames<PromptFormat> = {"chat", "raw"};

// The model's folder in that of recorded cases, which holds drafters beside it.
inline constexpr const char* kRecordedTarget = "target";

struct Qwen3Settings : DraftSettings {
  bool adaptive_drafting = false;      // leave the drafter out where it makes a text slower
  std::int64_t forced_acceptance = 0;  // tokens that each block of drafts gives; 0: as accepted
  PromptFormat prompt_format = PromptFormat::chat;
  std::string system;              // what comes before the conversation, "" = nothing
  std::filesystem::path messages;  // a conversation in JSON lines, "" = none
  bool enable_thinking = false;
  std::vector<std::string> stop;  // texts in front of which an answer ends
  bool ignore_eos = false;        // go on behind the end marker
};

}  // namespace diptych
