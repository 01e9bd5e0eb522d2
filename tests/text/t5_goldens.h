// The recorded T5 tokenizers. Both have the same charsmap, which the repository holds once, as
// bytes, and tokenizer.json wants as base64.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

#include <nlohmann/json.hpp>

#include "tests/text/support.h"

namespace diptych {

inline const std::filesystem::path kT5Goldens =
    std::filesystem::path(DIPTYCH_SOURCE_DIR) / "tests/goldens/t5";

inline std::string to_base64(std::string_view bytes) {
  constexpr std::string_view kAlphabet =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string text;
  for (std::size_t i = 0; i < bytes.size(); i += 3) {
    const std::string_view group = bytes.substr(i, 3);
    std::uint32_t bits = 0;
    for (std::size_t j = 0; j < 3; ++j)
      bits = bits << 8 | (j < group.size() ? static_cast<std::uint8_t>(group[j]) : 0u);
    for (std::size_t j = 0; j < 4; ++j)
      text += j <= group.size() ? kAlphabet[bits >> (18 - 6 * j) & 63] : '=';
  }
  return text;
}

inline const std::string& golden_charsmap() {
  static const std::string base64 = to_base64(read_file(kT5Goldens / "nmt_nfkc.charsmap"));
  return base64;
}

// The whole tokenizer.json of "wan" or "cosmos".
inline nlohmann::json golden_t5_json(const std::string& family) {
  auto json = nlohmann::json::parse(read_file(kT5Goldens / family / "tokenizer.json"));
  nlohmann::json& normalizer = json["normalizer"];
  nlohmann::json& step =
      normalizer["type"] == "Sequence" ? normalizer["normalizers"][0] : normalizer;
  step["precompiled_charsmap"] = golden_charsmap();
  return json;
}

}  // namespace diptych
