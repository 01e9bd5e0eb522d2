// Checkpoints in the user's Hugging Face cache, named as on the hub: "ORG/NAME". Nothing is
// downloaded.
#pragma once

#include <filesystem>
#include <string>

#include "lib/base/environment.h"
#include "lib/base/error.h"

namespace diptych {

// The path itself, unless it is not there and reads as ORG/NAME: then the folder of that model's
// main revision in the cache (HF_HUB_CACHE, else HF_HOME, XDG_CACHE_HOME or ~/.cache). Throws
// InputError, with the command that downloads it, where the cache lacks it or has only a part.
std::filesystem::path model_folder(const std::filesystem::path& model,
                                   const Environment& environment, const Subject& subject);

// How a record names a checkpoint: "ORG/NAME" of one in a cache, else the folder's own name.
std::string model_name(const std::filesystem::path& folder);
// A path whose model_name() is the name that a record has; nothing need be there.
std::filesystem::path path_of_name(const std::string& name);

}  // namespace diptych
