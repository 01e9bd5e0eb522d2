#include "lib/base/json_file.h"

#include <algorithm>
#include <set>
#include <vector>

#include "lib/base/error.h"
#include "lib/base/messages.h"
#include "lib/base/text_file.h"

namespace diptych {
namespace {

// "name:LINE:COLUMN" of a byte, both from 1.
std::string place_of(std::string_view text, std::size_t byte, std::string_view name) {
  const std::string_view before = text.substr(0, byte);
  const auto line = std::count(before.begin(), before.end(), '\n') + 1;
  const std::size_t last = before.rfind('\n');
  const std::size_t column = last == std::string_view::npos ? byte + 1 : byte - last;
  return fmt::format("{}:{}:{}", name, line, column);
}

}  // namespace

nlohmann::json parse_json(std::string_view text, std::string_view name,
                          const nlohmann::json::parser_callback_t& watch) {
  try {
    return nlohmann::json::parse(text, watch);
  } catch (const nlohmann::json::parse_error& error) {
    const std::size_t byte = error.byte - 1;  // nlohmann counts from 1
    if (text.empty()) throw InputError("{}: is empty, expected JSON", name);
    throw InputError("{}: {}", place_of(text, byte, name),
                     byte < text.size() ? "is not valid JSON" : "ends within its JSON: truncated?");
  } catch (const nlohmann::json::out_of_range&) {
    throw InputError("{}: has a number that is out of range", name);
  }
}

nlohmann::json parse_json(std::string_view text, std::string_view name) {
  return parse_json(text, name, nullptr);
}

nlohmann::json parse_strict_json(std::string_view text, std::string_view name) {
  using Event = nlohmann::json::parse_event_t;
  constexpr int kMostDepth = 16;
  std::vector<std::set<std::string>> keys;  // of the objects that are open
  const auto watch = [&](int depth, Event event, const nlohmann::json& value) {
    const bool opens = event == Event::object_start || event == Event::array_start;
    if (opens && depth >= kMostDepth)
      throw InputError("{}: nested deeper than {}", name, kMostDepth);
    if (event == Event::object_start) keys.emplace_back();
    if (event == Event::object_end) keys.pop_back();
    if (event == Event::key && !keys.back().insert(value.get<std::string>()).second)
      throw InputError("{}: the key {} appears twice", name, shown_json(value));
    return true;
  };
  return parse_json(text, name, watch);
}

std::string shown_json(const nlohmann::json& value) {
  return printable(shortened(value.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace)));
}

nlohmann::json read_json_object(const std::filesystem::path& path) {
  nlohmann::json json = parse_json(read_text_file(path), path.string());
  if (!json.is_object()) {
    throw InputError("{}: is a JSON {}, expected an object", path.string(), json.type_name());
  }
  return json;
}

}  // namespace diptych
