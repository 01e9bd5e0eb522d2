// The names in a result's record that what writes it and what reads it have in common.
#pragma once

#include <optional>
#include <string_view>

#include "lib/base/choices.h"
#include "lib/config/fields.h"

namespace diptych {

inline constexpr const char* kSchema = "diptych.generate";
inline constexpr int kSchemaVersion = 1;
// Of what memory made the run do; a record without these did nothing of the kind.
inline constexpr const char* kTiled = "on";
inline constexpr const char* kNotOffloaded = "none";
inline constexpr const char* kUntuned = "default";
inline constexpr std::string_view kExact = name_of(VaeDtype::float32);  // of the autoencoder
inline constexpr const char* kMessages = "messages";  // a conversation among the inputs
inline constexpr const char* kEnhanced = "enhanced";

// Nothing for what is no path.
inline std::optional<PathKind> path_kind(const Field& field) {
  const auto* path = std::get_if<PathSlot>(&field.slot);
  return path == nullptr ? std::nullopt : std::optional(path->kind);
}

}  // namespace diptych
