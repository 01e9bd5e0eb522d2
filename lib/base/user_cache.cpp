#include "lib/base/user_cache.h"

#include <cstdlib>

namespace diptych {
namespace {

std::optional<std::filesystem::path> absolute_path(const char* variable) {
  const char* value = std::getenv(variable);
  if (value == nullptr || value[0] != '/') return std::nullopt;
  return value;
}

}  // namespace

std::optional<std::filesystem::path> user_cache_folder() {
  if (const auto cache = absolute_path("XDG_CACHE_HOME")) return *cache / "diptych";
  if (const auto home = absolute_path("HOME")) return *home / ".cache" / "diptych";
  return std::nullopt;
}

}  // namespace diptych
