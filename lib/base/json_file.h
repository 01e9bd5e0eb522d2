// JSON out of files that others wrote: every mistake is an InputError with its place.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

#include <nlohmann/json.hpp>

namespace diptych {

// The bytes of a file. Throws InputError where it is missing, no file, or cannot be read.
std::string read_text_file(const std::filesystem::path& path);

// `name`: the file, for errors. `watch` sees every event and may throw, as nlohmann's callbacks do.
// Throws InputError "<name>:LINE:COLUMN: is not valid JSON", or that it ends within its JSON, and
// for numbers out of range.
nlohmann::json parse_json(std::string_view text, std::string_view name,
                          const nlohmann::json::parser_callback_t& watch = nullptr);

// A file whose root is an object. Throws InputError also where it is another value.
nlohmann::json read_json_object(const std::filesystem::path& path);

}  // namespace diptych
