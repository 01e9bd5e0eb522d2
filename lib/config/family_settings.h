// The values of a run that only its family knows, kept by their type.
#pragma once

#include <any>

namespace diptych {

class FamilySettings {
 public:
  // The settings of type T; their defaults where nothing was set.
  template <typename T>
  T& get() {
    if (auto* settings = std::any_cast<T>(&settings_)) return *settings;
    return settings_.emplace<T>();
  }
  template <typename T>
  T get() const {
    const auto* settings = std::any_cast<T>(&settings_);
    return settings == nullptr ? T() : *settings;
  }

 private:
  std::any settings_;  // of the one family of the run
};

}  // namespace diptych
