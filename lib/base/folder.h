// Folders that a flag names.
#pragma once

#include <filesystem>

#include "lib/base/error.h"

namespace diptych {

// Throws InputError, about `subject`, where there is nothing at `path` or something else, and
// std::filesystem::filesystem_error where that cannot be told.
void require_folder(const std::filesystem::path& path, const Subject& subject);

}  // namespace diptych
