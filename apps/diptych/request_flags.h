// The flags of a request, which generate takes for one and batch as defaults for all; made from the
// list of fields. What they come to: request_sources.h.
#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "lib/config/resolve.h"

namespace CLI {
class App;
}  // namespace CLI

namespace diptych {

// Which fields a verb takes as flags and variables.
using FieldChoice = bool (*)(const Field&);
inline bool takes_every_field(const Field&) {
  return true;
}

struct RequestFlags {
  std::map<std::string, std::vector<std::string>> values;  // by the flags of the field or group
  std::vector<FlagInput> inputs;                           // in order
  std::vector<std::string> overrides;
  std::filesystem::path negative_file;    // that -n names
  std::vector<std::string> prompt_files;  // that --prompt-file names, among the inputs
  bool print_config = false, check_config = false;
};

// Of the inputs. The first name is that of the variable, too; a file with a prompt has none.
inline constexpr std::string_view kPromptFlags = "-p,--prompt",
                                  kPromptFileFlags = "-f,--prompt-file,--file",
                                  kImageFlags = "-i,--image,-r,--ref-image,--input-image",
                                  kVideoFlags = "--video";

// `flags` outlives the parse; read_request_inputs() then fills its inputs.
void add_request_flags(CLI::App& verb, RequestFlags& flags, FieldChoice takes = takes_every_field);
void read_request_inputs(const CLI::App& verb, RequestFlags& flags);

// Takes the texts as they are; lib/config reads them.
void add_text_option(CLI::App& verb, std::string_view flags, std::string_view value,
                     const std::string& help, std::vector<std::string>& texts);

}  // namespace diptych
