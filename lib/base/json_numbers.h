// Numbers out of a JSON object that others wrote, such as a model's config.json.
#pragma once

#include <filesystem>
#include <initializer_list>
#include <type_traits>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "lib/base/error.h"

namespace diptych {

// Sets `value` to the number under the key; without the key, or where it is null, `value` keeps
// what it has. `path`: the file, for errors. Throws InputError "<path>: <key>: ..." for a value of
// another kind or out of [least, most].
template <typename Number>
void read_number(const nlohmann::json& json, const char* key, Number& value, Number least,
                 Number most, const std::filesystem::path& path) {
  const auto found = json.find(key);
  if (found == json.end() || found->is_null()) return;
  const bool fits = std::is_integral_v<Number> ? found->is_number_integer() : found->is_number();
  if (!fits) {
    throw InputError("{}: {}: found {}, expected a {}", path.string(), key, found->dump(),
                     std::is_integral_v<Number> ? "whole number" : "number");
  }
  value = found->template get<Number>();
  if (!(value >= least && value <= most)) {
    throw InputError("{}: {}: {} is out of range, expected {} to {}", path.string(), key,
                     found->dump(), least, most);
  }
}

// Throws InputError for the first of these keys that is missing or null.
inline void require_numbers(const nlohmann::json& json, std::initializer_list<const char*> keys,
                            const std::filesystem::path& path) {
  for (const char* key : keys) {
    if (!json.contains(key) || json[key].is_null())
      throw InputError("{}: {}: not given; expected a number", path.string(), key);
  }
}

}  // namespace diptych
