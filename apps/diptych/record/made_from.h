// What a recorded result was made from: files that a replay needs again, found and held to the
// hashes of the record.
#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "apps/diptych/record/read_record.h"
#include "lib/config/run_config.h"

namespace diptych {

// Files that are given for it, or some of them; others are looked for beside the result and here,
// by their recorded names.
struct GivenFiles {
  std::map<MediaKind, std::vector<std::filesystem::path>> inputs;
  std::vector<std::filesystem::path> weights;
  std::vector<std::filesystem::path> messages;  // conversations
  std::filesystem::path model;  // "" = the folder of the recorded name, or the demo's
};

// The requests of the record, record.together, with real paths. `file`: the result. Throws
// InputError for a file that is not there or is another one, and for one that is given and was not
// used.
std::vector<RunConfig> find_made_from(const ResultRecord& record, const std::filesystem::path& file,
                                      const GivenFiles& given);

}  // namespace diptych
