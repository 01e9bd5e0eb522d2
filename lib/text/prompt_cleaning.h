// What the reference implementations do with a prompt before they tokenize it. They disagree, and
// a model sees the difference: each is here under its own name (specs: wan.md section 2.1).
#pragma once

#include <string>
#include <string_view>

namespace diptych {

enum class PromptCleaning {
  none,        // Cosmos (diffusers): the prompt as it is
  strip,       // FastVideo: whitespace at both ends goes
  diffusers,   // diffusers' WanPipeline where ftfy is not installed: HTML references twice, runs of
               // whitespace to one space
  ftfy,        // the same where ftfy is installed, which the official Wan code requires: fix_text()
               // first (lib/text/fix_text.h)
  whitespace,  // vLLM-Omni: words with one space between them
};

// Valid UTF-8 to valid UTF-8. Throws InputError for text that is not UTF-8, and, with ftfy, as
// to_nfc().
std::string clean_prompt(std::string_view prompt, PromptCleaning cleaning);

}  // namespace diptych
