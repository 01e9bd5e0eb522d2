#include "lib/models/lora/lora_header.h"

#include <cmath>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "lib/base/error.h"
#include "lib/base/json_file.h"
#include "lib/tensor/tensor_names.h"

namespace diptych {
namespace {

using Json = nlohmann::ordered_json;  // of patterns the first one counts that fits

constexpr const char* kEntry = "lora_adapter_metadata";
constexpr std::string_view kModel = "transformer.";  // of the model in a pipeline of diffusers
constexpr std::size_t kMostPattern = 1000;

// A backslash in front of a letter that ECMAScript's expressions give no meaning.
bool has_other_escape(const std::string& pattern) {
  for (std::size_t i = 0; i + 1 < pattern.size(); ++i) {
    if (pattern[i] != '\\') continue;
    const char escaped = pattern[++i];
    const bool is_letter = (escaped >= 'a' && escaped <= 'z') || (escaped >= 'A' && escaped <= 'Z');
    if (is_letter && std::string_view("dDsSwWbBnrtfv").find(escaped) == std::string_view::npos)
      return true;
  }
  return false;
}

class HeaderReader {
 public:
  HeaderReader(const TensorFile& file, const std::string& text)
      : place_(fmt::format("{}: {}", file.path().string(), kEntry)),
        json_(Json::parse(text, nullptr, /*allow_exceptions=*/false)) {
    if (!json_.is_object()) throw InputError("{}: is no JSON object", place_);
  }

  // Nothing where it is of other parts of a pipeline alone.
  std::optional<LoraHeader> read() const {
    bool is_of_model = false;
    for (const auto& [key, value] : json_.items())
      is_of_model = is_of_model || key.starts_with(kModel);
    if (!is_of_model) return std::nullopt;
    LoraHeader header;
    if (const Json* alpha = find("lora_alpha")) header.lora_alpha = number("lora_alpha", *alpha);
    if (const Json* pattern = find("alpha_pattern")) {
      if (!pattern->is_object())
        throw InputError("{}: alpha_pattern: found {}, expected an object", place_,
                         shown_json(*pattern));
      for (const auto& [text, alpha] : pattern->items())
        header.alphas.emplace_back(regex(text),
                                   number("alpha_pattern: " + shown_name(text), alpha));
    }
    header.rank_stabilised = is_on("use_rslora");
    if (is_on("use_dora")) throw InputError("{}: use_dora: DoRA is not supported", place_);
    return header;
  }

 private:
  const Json* find(std::string_view key) const {
    const auto found = json_.find(fmt::format("{}{}", kModel, key));
    return found == json_.end() || found->is_null() ? nullptr : &*found;
  }
  // As peft reads it, by libstdc++'s matcher of polynomial time: the other one may take exponential
  // time. It takes escapes that only Python has for their letters.
  std::regex regex(const std::string& text) const {
    std::string why = "is too long, or has an escape that is not known here";
    try {
      if (text.size() <= kMostPattern && !has_other_escape(text))
        return std::regex(fmt::format(R"((.*\.)?({})$)", text),
                          std::regex_constants::ECMAScript | std::regex_constants::__polynomial);
    } catch (const std::regex_error& error) {
      why = error.what();
    }
    throw InputError("{}: alpha_pattern: {}: expected a regular expression: {}", place_,
                     shown_name(text), why);
  }
  double number(const std::string& key, const Json& value) const {
    if (value.is_number() && std::isfinite(value.get<double>())) return value.get<double>();
    throw InputError("{}: {}: found {}, expected a number", place_, key, shown_json(value));
  }
  bool is_on(std::string_view key) const {
    const Json* value = find(key);
    if (value == nullptr) return false;
    if (!value->is_boolean())
      throw InputError("{}: {}: found {}, expected true or false", place_, key, shown_json(*value));
    return value->get<bool>();
  }

  std::string place_;
  Json json_;
};

}  // namespace

double LoraHeader::alpha(std::string_view module) const {
  for (const auto& [pattern, value] : alphas) {
    if (std::regex_match(module.begin(), module.end(), pattern)) return value;
  }
  return lora_alpha;
}

std::optional<LoraHeader> LoraHeader::read(const TensorFile& file) {
  const auto text = file.metadata().find(kEntry);
  if (text == file.metadata().end()) return std::nullopt;
  return HeaderReader(file, text->second).read();
}

}  // namespace diptych
