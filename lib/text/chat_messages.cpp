#include "lib/text/chat_messages.h"

#include <algorithm>
#include <array>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "lib/base/error.h"
#include "lib/base/json_file.h"
#include "lib/base/text_file.h"
#include "lib/base/utf8.h"

namespace diptych {
namespace {

using Json = nlohmann::ordered_json;

constexpr auto kKeys =
    std::to_array<std::string_view>({"role", "content", "reasoning_content", "tool_calls"});

class LineReader {
 public:
  LineReader(std::string_view line, const std::string& place) : place_(place) {
    if (!parse_strict_json(line, place).is_object())
      throw InputError("{}: expected an object with role and content", place);
    json_ = Json::parse(line);  // which keeps the order of keys
  }

  bool gives_tools() const { return json_.size() == 1 && json_.contains("tools"); }

  Json tools() const {
    const Json& tools = json_["tools"];
    if (!tools.is_array())
      throw InputError("{}: tools: found {}, expected a list", place_, tools.dump());
    return tools;
  }

  ChatMessage message() const {
    for (const auto& [key, value] : json_.items()) {
      if (std::ranges::find(kKeys, key) == kKeys.end())
        throw InputError("{}: unknown key '{}'; expected {}, or tools alone", place_, key,
                         fmt::join(kKeys, ", "));
    }
    ChatMessage message;
    const auto role = parse_choice<ChatRole>(text("role"));
    if (!role)
      throw InputError("{}: role: found {}, expected {}", place_, json_["role"].dump(),
                       fmt::join(kChoiceNames<ChatRole>, ", "));
    message.role = *role;
    message.content = text("content");
    const bool assistant = message.role == ChatRole::assistant;
    for (const char* key : {"reasoning_content", "tool_calls"}) {
      if (json_.contains(key) && !assistant)
        throw InputError("{}: {}: is of an assistant, found the role {}", place_, key,
                         name_of(message.role));
    }
    if (json_.contains("reasoning_content")) message.reasoning_content = text("reasoning_content");
    if (json_.contains("tool_calls")) message.tool_calls = calls();
    return message;
  }

 private:
  std::string text(const char* key) const {
    const auto found = json_.find(key);
    if (found == json_.end()) throw InputError("{}: {}: not given; expected a text", place_, key);
    if (!found->is_string())
      throw InputError("{}: {}: found {}, expected a text", place_, key, found->dump());
    return found->get<std::string>();
  }

  Json calls() const {
    const Json& calls = json_["tool_calls"];
    if (!calls.is_array())
      throw InputError("{}: tool_calls: found {}, expected a list", place_, calls.dump());
    return calls;
  }

  const std::string& place_;
  Json json_;
};

}  // namespace

ChatRequest read_chat_messages(const std::filesystem::path& file) {
  std::string text = read_text_file(file);
  if (text.starts_with("\xEF\xBB\xBF")) text.erase(0, 3);
  ChatRequest request;
  std::size_t number = 0;
  for (std::string_view rest = text; !rest.empty();) {
    const std::size_t end = std::min(rest.find('\n'), rest.size());
    const std::string_view line = rest.substr(0, end);
    rest.remove_prefix(std::min(end + 1, rest.size()));
    ++number;
    if (line.find_first_not_of(" \t\r") == std::string_view::npos) continue;
    const std::string place = fmt::format("{}:{}", file.string(), number);
    const LineReader reader(line, place);
    if (reader.gives_tools()) {
      request.tools = reader.tools();
    } else {
      request.messages.push_back(reader.message());
    }
  }
  if (request.messages.empty()) throw InputError("{}: holds no message", file.string());
  return request;
}

}  // namespace diptych
