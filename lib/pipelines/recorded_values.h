// What a family's replay reads of case.json, and how it becomes a request, in the words that a user
// has for it.
#pragma once

#include <algorithm>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "lib/base/error.h"
#include "lib/config/resolve.h"
#include "lib/pipelines/family.h"

namespace diptych {

// A value of case.json by pointer ("/params/cfg_text_scale"); throws InputError naming file and
// key.
template <typename T>
T recorded_field(const RecordedCase& recorded, const std::string& pointer) {
  const std::string file = (recorded.folder / "case.json").string();
  const nlohmann::json::json_pointer path(pointer);
  if (!recorded.description.contains(path)) throw InputError("{}: {}: missing", file, pointer);
  try {
    return recorded.description.at(path).get<T>();
  } catch (const nlohmann::json::exception&) {
    throw InputError("{}: {}: found {}, expected another type", file, pointer,
                     recorded.description.at(path).dump());
  }
}

inline bool has_field(const RecordedCase& recorded, const std::string& pointer) {
  return recorded.description.contains(nlohmann::json::json_pointer(pointer));
}

template <typename T>
T recorded_field_or(const RecordedCase& recorded, const std::string& pointer, T otherwise) {
  return has_field(recorded, pointer) ? recorded_field<T>(recorded, pointer) : otherwise;
}

class RecordedValues {
 public:
  RecordedValues(const RecordedCase& recorded, std::span<const Field> fields)
      : recorded_(recorded), fields_(fields) {}

  // The parameter at `pointer`, which has to be there and of type T.
  template <typename T>
  void add(std::string_view name, const std::string& pointer) {
    add_text(name, pointer, fmt::format("{}", recorded_field<T>(recorded_, pointer)));
  }
  // Likewise, where it is there.
  template <typename T>
  void add_if_there(std::string_view name, const std::string& pointer) {
    if (has_field(recorded_, pointer)) add<T>(name, pointer);
  }
  void add_text(std::string_view name, const std::string& pointer, std::string text) {
    values_.push_back({field_index(name, fields_), std::move(text),
                       fmt::format("{}: {}", (recorded_.folder / "case.json").string(), pointer)});
  }
  // The first of these that is there: a list of two numbers, or a text of two, "0.2 0.9".
  void add_interval(std::string_view name, std::span<const std::string> pointers) {
    for (const std::string& pointer : pointers) {
      if (!has_field(recorded_, pointer)) continue;
      const auto& value = recorded_.description.at(nlohmann::json::json_pointer(pointer));
      if (value.is_string()) {
        auto text = value.get<std::string>();
        std::ranges::replace(text, ' ', ',');
        return add_text(name, pointer, std::move(text));
      }
      const auto [low, high] = recorded_field<std::pair<double, double>>(recorded_, pointer);
      return add_text(name, pointer, fmt::format("{},{}", low, high));
    }
  }
  const std::vector<GivenValue>& values() const { return values_; }

 private:
  const RecordedCase& recorded_;
  std::span<const Field> fields_;
  std::vector<GivenValue> values_;
};

// A user's request with these values and inputs, over what `config` says.
RunConfig recorded_request(const RunConfig& config, const RecordedCase& recorded,
                           const std::function<void(RecordedValues&)>& add,
                           std::vector<InputItem> inputs);

}  // namespace diptych
