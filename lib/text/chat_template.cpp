#include "lib/text/chat_template.h"

#include <algorithm>
#include <array>

#include <fmt/format.h>

#include "lib/base/error.h"
#include "lib/base/json_file.h"
#include "lib/base/text_file.h"

namespace diptych {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

constexpr std::string_view kStart = "<|im_start|>", kEnd = "<|im_end|>\n";
constexpr std::string_view kThought = "<think>", kThoughtEnd = "</think>";
constexpr std::string_view kEmptyThought = "<think>\n\n</think>\n\n";
constexpr std::string_view kResponse = "<tool_response>", kResponseEnd = "</tool_response>";

constexpr std::string_view kToolsHead =
    "# Tools\n\nYou may call one or more functions to assist with the user query.\n\nYou are "
    "provided with function signatures within <tools></tools> XML tags:\n<tools>";
constexpr std::string_view kToolsTail =
    "\n</tools>\n\nFor each function call, return a json object with function name and arguments "
    "within <tool_call></tool_call> XML tags:\n<tool_call>\n{\"name\": <function-name>, "
    "\"arguments\": <args-json-object>}\n</tool_call>";

// As Python's str.lstrip("\n") and rstrip("\n").
std::string_view without_first_lines(std::string_view text) {
  text.remove_prefix(std::min(text.find_first_not_of('\n'), text.size()));
  return text;
}
std::string_view without_last_lines(std::string_view text) {
  return text.substr(0, text.find_last_not_of('\n') + 1);
}

// As Python's json.dumps(value, ensure_ascii=False), which the filter tojson is here: blanks behind
// , and :.
std::string python_json(const Json& value) {
  constexpr auto kReplace = Json::error_handler_t::replace;
  if (!value.is_structured()) return value.dump(-1, ' ', false, kReplace);
  std::string text(1, value.is_array() ? '[' : '{');
  bool first = true;
  for (const auto& [key, part] : value.items()) {
    if (!std::exchange(first, false)) text += ", ";
    if (value.is_object()) text += Json(key).dump(-1, ' ', false, kReplace) + ": ";
    text += python_json(part);
  }
  return text + (value.is_array() ? ']' : '}');
}

class Renderer {
 public:
  explicit Renderer(const ChatRequest& request)
      : request_(request), messages_(request.messages), last_query_(find_last_query()) {}

  std::string render() {
    add_head();
    for (std::size_t i = 0; i < messages_.size(); ++i) add_message(i);
    if (request_.add_generation_prompt) {
      add(kStart, "assistant\n");
      if (!request_.enable_thinking) add(kEmptyThought);
    }
    return std::move(text_);
  }

 private:
  template <typename... Parts>
  void add(const Parts&... parts) {
    (text_.append(parts), ...);
  }

  // The last question that is no answer of a tool; the last message where there is none.
  std::size_t find_last_query() const {
    for (std::size_t i = messages_.size(); i-- > 0;) {
      const std::string& content = messages_[i].content;
      const bool of_tool = content.starts_with(kResponse) && content.ends_with(kResponseEnd);
      if (messages_[i].role == ChatRole::user && !of_tool) return i;
    }
    return messages_.size() - 1;
  }

  bool begins_with_system() const {
    return !messages_.empty() && messages_.front().role == ChatRole::system;
  }

  void add_head() {
    const bool system = begins_with_system();
    if (!request_.tools.is_array() || request_.tools.empty()) {
      if (system) add(kStart, "system\n", messages_.front().content, kEnd);
      return;
    }
    add(kStart, "system\n");
    if (system) add(messages_.front().content, "\n\n");
    add(kToolsHead);
    for (const Json& tool : request_.tools) add("\n", python_json(tool));
    add(kToolsTail, kEnd);
  }

  void add_message(std::size_t i) {
    const ChatMessage& message = messages_[i];
    if (message.role == ChatRole::assistant) return add_assistant(i);
    if (message.role == ChatRole::tool) return add_response(i);
    if (message.role == ChatRole::system && i == 0) return;  // it is the head
    add(kStart, name_of(message.role), "\n", message.content, kEnd);
  }

  void add_assistant(std::size_t i) {
    const ChatMessage& message = messages_[i];
    std::string_view content = message.content, thought;
    if (message.reasoning_content) {
      thought = *message.reasoning_content;
    } else if (const auto end = content.find(kThoughtEnd); end != std::string_view::npos) {
      thought = without_last_lines(content.substr(0, end));
      if (const auto begin = thought.rfind(kThought); begin != std::string_view::npos)
        thought.remove_prefix(begin + kThought.size());
      thought = without_first_lines(thought);
      content =
          without_first_lines(content.substr(content.rfind(kThoughtEnd) + kThoughtEnd.size()));
    }
    add(kStart, name_of(message.role), "\n");
    const bool last = i + 1 == messages_.size();
    if (i > last_query_ && (last || !thought.empty())) {
      add(kThought, "\n", without_first_lines(without_last_lines(thought)), "\n", kThoughtEnd,
          "\n\n", without_first_lines(content));
    } else {
      add(content);
    }
    add_calls(message.tool_calls, !content.empty());
    add(kEnd);
  }

  void add_calls(const Json& calls, bool behind_text) {
    if (!calls.is_array()) return;
    for (const Json& each : calls) {
      if (std::exchange(behind_text, true)) add("\n");
      const Json call = each.is_object() ? each.value("function", each) : Json();
      if (!call.is_object() || !call.contains("name") || !call["name"].is_string())
        throw InputError("tool_calls: found {}, expected a function with a name", each.dump());
      const Json arguments = call.value("arguments", Json::object());
      add("<tool_call>\n{\"name\": \"", call["name"].get<std::string>(), "\", \"arguments\": ",
          arguments.is_string() ? arguments.get<std::string>() : python_json(arguments),
          "}\n</tool_call>");
    }
  }

  // Those in a row make one turn of the user.
  void add_response(std::size_t i) {
    const auto is_response = [&](std::size_t at) {
      return at < messages_.size() && messages_[at].role == ChatRole::tool;
    };
    if (i == 0 || !is_response(i - 1)) add(kStart, name_of(ChatRole::user));
    add("\n", kResponse, "\n", messages_[i].content, "\n", kResponseEnd);
    if (!is_response(i + 1)) add(kEnd);
  }

  const ChatRequest& request_;
  const std::vector<ChatMessage>& messages_;
  std::size_t last_query_;
  std::string text_;
};

std::string without_blanks(std::string_view text) {
  std::string rest;
  std::ranges::copy_if(text, std::back_inserter(rest),
                       [](char c) { return c != ' ' && c != '\n' && c != '\r' && c != '\t'; });
  return rest;
}

// What shapes the text, without its blanks.
constexpr auto kMarkers = std::to_array<std::string_view>({
    R"('<|im_start|>system\n'+messages[0].content+'<|im_end|>\n')",
    R"('<|im_start|>'+message.role+'\n')",
    R"('<|im_start|>assistant\n')",
    "last_query_index",
    R"('<think>\n\n</think>\n\n')",
    "ifenable_thinkingisdefinedandenable_thinkingisfalse",
    R"('\n</tool_response>')",
    R"(<tool_call>\n{"name":)",
});

// A list of templates has them by name.
std::optional<std::string> template_of(const nlohmann::json& value) {
  if (value.is_string()) return value.get<std::string>();
  if (!value.is_array()) return std::nullopt;
  for (const nlohmann::json& each : value) {
    if (each.is_object() && each.value("name", nlohmann::json()) == "default")
      return template_of(each.value("template", nlohmann::json()));
  }
  return std::nullopt;
}

}  // namespace

std::string render_qwen3_chat(const ChatRequest& request) {
  return Renderer(request).render();
}

std::optional<FoundTemplate> find_chat_template(const fs::path& folder) {
  std::error_code ignored;
  const fs::path own = folder / "chat_template.jinja";
  if (fs::exists(own, ignored)) return FoundTemplate{own.string(), read_text_file(own)};
  const fs::path config = folder / "tokenizer_config.json";
  if (!fs::exists(config, ignored)) return std::nullopt;
  const auto json = read_json_object(config);
  const auto found = json.find("chat_template");
  const auto text = found == json.end() ? std::nullopt : template_of(*found);
  if (!text) return std::nullopt;
  return FoundTemplate{fmt::format("{}: chat_template", config.string()), *text};
}

std::string_view missing_in_qwen3_template(std::string_view jinja) {
  const std::string text = without_blanks(jinja);
  for (const std::string_view marker : kMarkers) {
    if (text.find(marker) == std::string::npos) return marker;
  }
  return {};
}

}  // namespace diptych
