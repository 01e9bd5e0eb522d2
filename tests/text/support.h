// What several tests of lib/text share.
#pragma once

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include <doctest/doctest.h>

namespace diptych {

inline const std::filesystem::path kBagelGoldens =
    std::filesystem::path(DIPTYCH_SOURCE_DIR) / "tests/goldens/bagel";

inline std::string read_file(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  REQUIRE_MESSAGE(file.is_open(), path.string());
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

inline constexpr const char* kNoUtf8proc = "this build has no utf8proc";

// Whether this build can normalise text up to `largest` (a code point).
inline bool can_normalise(char32_t largest) {
  return DIPTYCH_HAVE_UTF8PROC || largest < 0x300;
}

}  // namespace diptych
