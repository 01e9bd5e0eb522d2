// Where a program keeps what it can make again.
#pragma once

#include <filesystem>
#include <optional>

namespace diptych {

// $XDG_CACHE_HOME/diptych, else $HOME/.cache/diptych; need not be there. Nothing where neither
// variable holds an absolute path.
std::optional<std::filesystem::path> user_cache_folder();

}  // namespace diptych
