#include "lib/batch/dataset.h"

#include <algorithm>
#include <optional>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "lib/base/error.h"
#include "lib/base/json_file.h"
#include "lib/base/text_file.h"
#include "lib/base/utf8.h"

namespace diptych {
namespace {

using Json = nlohmann::json;

constexpr std::string_view kBoxed =
    "\nPlease reason step by step, and put your final answer within \\boxed{}.";
constexpr std::string_view kCode =
    "Write a solution to the following problem and make sure that it passes the "
    "tests:\n```python\n";

// One line, which is an object.
class RowReader {
 public:
  RowReader(const Json& row, const std::string& place) : row_(row), place_(place) {}

  DatasetKind kind() const {
    using enum DatasetKind;
    if (has_list("turns") || has_list("prompt")) return mt_bench;
    if (has("instruction")) return alpaca;
    if (has("problem")) return math500;
    if (has("question") && has("answer")) return gsm8k;
    if (has("test_list")) return mbpp;
    if (has("prompt") && has("entry_point")) return humaneval;
    if (has("prompt") || has("question")) return prompts;
    throw InputError("{}: no kind of row that is known; expected {}", place_,
                     "prompt, question, turns, instruction or problem");
  }

  DatasetRow read(DatasetKind kind) const {
    using enum DatasetKind;
    switch (kind) {
      case alpaca:
        return {{alpaca_prompt()}, ""};
      case gsm8k:
        return {{text("question") + std::string(kBoxed)}, gsm8k_answer()};
      case humaneval:
        return {{fmt::format("{}{}\n```", kCode, text("prompt"))}, ""};
      case math500:
        return {{text("problem") + std::string(kBoxed)}, has("answer") ? text("answer") : ""};
      case mbpp:
        return {{text(has("prompt") ? "prompt" : "text")}, ""};
      case mt_bench:
        return {turns(has("turns") ? "turns" : "prompt"), ""};
      case automatic:
      case prompts:
        break;
    }
    return {{text(has("prompt") ? "prompt" : "question")}, ""};
  }

 private:
  bool has(const char* key) const { return row_.contains(key); }
  bool has_list(const char* key) const { return has(key) && row_[key].is_array(); }

  std::string text(const char* key) const {
    if (!has(key)) throw InputError("{}: {}: not given; expected a text", place_, key);
    return text_of(row_[key], key);
  }
  std::string text_of(const Json& value, const char* key) const {
    if (!value.is_string())
      throw InputError("{}: {}: found {}, expected a text", place_, key, shown_json(value));
    return value.get<std::string>();
  }

  std::string alpaca_prompt() const {
    const std::string input = has("input") ? text("input") : "";
    const std::string instruction = text("instruction");
    return input.empty() ? instruction : fmt::format("{}\n\nInput:\n{}", instruction, input);
  }

  std::string gsm8k_answer() const {
    if (!has("answer")) return "";
    const std::string answer = text("answer");
    constexpr std::string_view kMark = "####";
    const std::size_t mark = answer.rfind(kMark);
    return mark == std::string::npos ? answer : answer.substr(mark + kMark.size());
  }

  std::vector<std::string> turns(const char* key) const {
    if (!has_list(key) || row_[key].empty())
      throw InputError("{}: {}: found {}, expected a list of texts", place_, key,
                       has(key) ? shown_json(row_[key]) : "nothing");
    std::vector<std::string> texts;
    for (const Json& turn : row_[key]) texts.push_back(text_of(turn, key));
    return texts;
  }

  const Json& row_;
  const std::string& place_;
};

}  // namespace

Dataset read_dataset(const std::filesystem::path& file, DatasetKind kind) {
  std::string text = read_text_file(file);
  if (text.starts_with("\xEF\xBB\xBF")) text.erase(0, 3);
  Dataset dataset{file.stem().string(), kind, {}};
  std::size_t number = 0;
  for (std::string_view rest = text; !rest.empty();) {
    const std::size_t end = std::min(rest.find('\n'), rest.size());
    const std::string_view line = rest.substr(0, end);
    rest.remove_prefix(std::min(end + 1, rest.size()));
    ++number;
    if (line.find_first_not_of(" \t\r") == std::string_view::npos) continue;
    const std::string place = fmt::format("{}:{}", file.string(), number);
    const Json row = parse_strict_json(line, place);
    if (!row.is_object())
      throw InputError("{}: found {}, expected an object", place, shown_json(row));
    const RowReader reader(row, place);
    if (dataset.kind == DatasetKind::automatic) dataset.kind = reader.kind();
    dataset.rows.push_back(reader.read(dataset.kind));
    dataset.rows.back().place = place;
  }
  if (dataset.rows.empty()) throw InputError("{}: holds no row", file.string());
  return dataset;
}

}  // namespace diptych
