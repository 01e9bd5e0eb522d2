// The keys of the field's stage files that this version knows and cannot serve. A family that takes
// one has a field for it; one that can say better why it does not has a reason of its own
// (FamilyConfig::refused).
#pragma once

#include <span>
#include <string_view>

namespace diptych {

enum class YamlMap { file, stage, sampling, extra_args, attention, attention_roles };

struct RefusedKey {
  YamlMap map;
  std::string_view key;
  std::string_view
      off;  // values that ask for what happens here anyway, "1|none"; empty ones do, too
  std::string_view why;
};

std::span<const RefusedKey> refused_keys();

}  // namespace diptych
