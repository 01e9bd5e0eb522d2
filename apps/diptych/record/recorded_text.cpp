#include "apps/diptych/record/recorded_text.h"

#include <cstdint>
#include <system_error>

#include "lib/base/error.h"
#include "lib/base/json_file.h"
#include "lib/base/text_file.h"
#include "lib/base/utf8.h"
#include "lib/config/result_formats.h"

namespace diptych {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char *kText = "text", *kItsRecord = "record";

}  // namespace

std::string text_in_json(const MadeResult& made) {
  return replace_invalid_utf8(made.result().text().text);
}

std::string recorded_text_json(const MadeResult& made) {
  const Json json = {{kText, text_in_json(made)},
                     {kItsRecord, record_json(made, TextEncoding{.with_record = true}, "")}};
  return json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

bool is_recorded_text(const std::filesystem::path& file) {
  std::error_code ignored;
  if (!std::filesystem::is_regular_file(file, ignored)) return false;
  if (is_named_json(file)) return true;
  constexpr std::size_t kStart = 64;
  const std::string start = read_text_start(file, kStart);
  const std::size_t first = start.find_first_not_of(" \t\r\n");
  return first != std::string::npos && start[first] == '{';
}

RecordedText read_recorded_text(const std::filesystem::path& file) {
  const std::string name = file.string();
  constexpr std::uintmax_t kMostBytes = std::uintmax_t{1} << 26;
  std::error_code ignored;
  if (const auto size = std::filesystem::file_size(file, ignored); !ignored && size > kMostBytes)
    throw InputError("{}: {} bytes; of a text with its record at most {} are read", name, size,
                     kMostBytes);
  const std::string bytes = read_text_file(file);
  const auto checked = parse_strict_json(bytes, name);  // says where it is broken
  const bool has_both = checked.is_object() && checked.contains(kText) &&
                        checked[kText].is_string() && checked.contains(kItsRecord) &&
                        checked[kItsRecord].is_object();
  if (!has_both) {
    throw InputError("{}: is no text with a record; expected an object with \"{}\" and \"{}\"",
                     name, kText, kItsRecord);
  }
  const Json json = Json::parse(bytes);  // in the order of the file
  return {json[kText].get<std::string>(), {{kRecord, json[kItsRecord].dump()}}};
}

}  // namespace diptych
