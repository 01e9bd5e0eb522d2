// Texts that a request names instead of giving them: in a file, or on stdin.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "lib/base/setting.h"
#include "lib/config/run_config.h"

namespace diptych {

// The prompt text that means "the content of this file": "@name".
std::string prompt_of_file(const std::string& name);
// What stands in the file that "@NAME" names, which `file` gets; other texts, and "@@..." without
// its first "@", as they are. Throws InputError about the setting for what cannot be read.
std::string read_prompt(const std::string& text, const Setting& setting,
                        std::filesystem::path* file = nullptr);

// A text "-" becomes what stdin holds and a picture or video "-" the path of a file with it; @FILE
// becomes what the file holds, and @@ a plain @ in front of a prompt. Throws InputError for a
// second "-", for one where a list takes stdin, and for what cannot be read.
void read_stdin_and_files(std::vector<InputItem>& inputs, bool stdin_is_taken = false);

}  // namespace diptych
