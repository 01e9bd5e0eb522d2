// Conversations in files: JSON lines, a message each.
#pragma once

#include <filesystem>

#include "lib/text/chat_template.h"

namespace diptych {

// Messages, and the tools that they may call, as {"role": "user", "content": "..."}, of an
// assistant also with reasoning_content and tool_calls; a line {"tools": [...]} gives the tools.
// Throws InputError "FILE:LINE: ..." for a line that is none of these, and where no message is
// there.
ChatRequest read_chat_messages(const std::filesystem::path& file);

}  // namespace diptych
