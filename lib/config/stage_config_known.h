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
  // Values that ask for what happens here anyway, "1|none"; empty ones do, too. A family's entry of
  // a key that refused_keys() has leaves them to that one.
  std::string_view off;
  std::string_view why;
};

std::span<const RefusedKey> refused_keys();
// Null where the list does not have it.
const RefusedKey* find_refused(std::span<const RefusedKey> keys, YamlMap map, std::string_view key);

}  // namespace diptych
