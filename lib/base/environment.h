// The environment variables of a process, as data.
#pragma once

#include <map>
#include <optional>
#include <string>

namespace diptych {

struct Environment {
  std::map<std::string, std::string> variables;
  // The value of a variable; nothing where it is not set.
  std::optional<std::string> operator()(const std::string& name) const;
};

Environment process_environment();

}  // namespace diptych
