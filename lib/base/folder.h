// Folders that a flag names.
#pragma once

#include <filesystem>
#include <string_view>

namespace diptych {

// Throws InputError, which names `flag`, where there is nothing at `path` or something else, and
// std::filesystem::filesystem_error where that cannot be told.
void require_folder(const std::filesystem::path& path, std::string_view flag);

}  // namespace diptych
