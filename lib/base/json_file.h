// JSON out of files that others wrote: every mistake is an InputError with its place.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

#include <nlohmann/json.hpp>

namespace diptych {

// `name`: the file, for errors. Throws InputError "<name>:LINE:COLUMN: is not valid JSON", or that
// it ends within its JSON, and for numbers out of range.
nlohmann::json parse_json(std::string_view text, std::string_view name);
// The same; `watch` sees every event, leaves out values where it returns false, and may throw.
nlohmann::json parse_json(std::string_view text, std::string_view name,
                          const nlohmann::json::parser_callback_t& watch);

// The same, and InputError for a key that appears twice in an object, of which nlohmann's tree
// would keep the last, and for what is nested deeper than 16, where its functions recurse.
nlohmann::json parse_strict_json(std::string_view text, std::string_view name);

// A value as messages show it: on one line, a long one cut.
std::string shown_json(const nlohmann::json& value);

// A file whose root is an object. Throws InputError also where it is another value.
nlohmann::json read_json_object(const std::filesystem::path& path);

}  // namespace diptych
