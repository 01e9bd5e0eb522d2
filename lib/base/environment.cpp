#include "lib/base/environment.h"

#include <string_view>

#include <unistd.h>

namespace diptych {

std::optional<std::string> Environment::operator()(const std::string& name) const {
  const auto found = variables.find(name);
  return found == variables.end() ? std::nullopt : std::optional(found->second);
}

Environment process_environment() {
  Environment environment;
  for (char** each = environ; each != nullptr && *each != nullptr; ++each) {
    const std::string_view entry = *each;
    const std::size_t end = entry.find('=');
    if (end == std::string_view::npos) continue;
    // Of a name that is there twice the first counts, as for getenv().
    environment.variables.emplace(entry.substr(0, end), entry.substr(end + 1));
  }
  return environment;
}

}  // namespace diptych
