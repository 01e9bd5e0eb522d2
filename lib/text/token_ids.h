// What the readers of tokenizer files share.
#pragma once

#include <cstdint>
#include <string>

namespace diptych {

// The largest id: pairs of ids are 64-bit keys.
inline constexpr std::int64_t kMaxTokenId = (std::int64_t{1} << 31) - 1;

// A file's text and the name that errors give it.
struct NamedText {
  std::string name;
  std::string text;
};

}  // namespace diptych
