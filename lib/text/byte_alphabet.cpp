#include "lib/text/byte_alphabet.h"

#include <cstddef>

#include "lib/base/utf8.h"

namespace diptych {

namespace {

constexpr std::size_t kOwn = 188;  // bytes that stand for themselves

constexpr bool stands_for_itself(int byte) {
  return (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
}

constexpr std::array<std::uint8_t, 256> make_order() {
  std::array<std::uint8_t, 256> order{};
  std::size_t own = 0, moved = kOwn;
  for (int byte = 0; byte < 256; ++byte) {
    order[stands_for_itself(byte) ? own++ : moved++] = static_cast<std::uint8_t>(byte);
  }
  return order;
}

constexpr std::array<std::uint8_t, 256> kOrder = make_order();

constexpr std::array<char32_t, 256> make_characters() {
  std::array<char32_t, 256> characters{};
  for (std::size_t i = 0; i < 256; ++i) {
    characters[kOrder[i]] = i < kOwn ? kOrder[i] : static_cast<char32_t>(0x100 + i - kOwn);
  }
  return characters;
}

constexpr std::array<char32_t, 256> kCharacters = make_characters();

std::optional<std::uint8_t> byte_of(char32_t character) {
  const auto moved = static_cast<std::size_t>(character - 0x100);
  if (character >= 0x100 && moved < 256 - kOwn) return kOrder[kOwn + moved];
  if (character < 0x100 && stands_for_itself(static_cast<int>(character))) {
    return static_cast<std::uint8_t>(character);
  }
  return std::nullopt;
}

}  // namespace

const std::array<std::uint8_t, 256>& alphabet_order() {
  return kOrder;
}

std::string alphabet_text(std::uint8_t byte) {
  std::string text;
  append_utf8(text, kCharacters[byte]);
  return text;
}

bool is_in_alphabet(std::string_view piece) {
  for (std::size_t i = 0; i < piece.size();) {
    const Utf8Character character = utf8_at(piece, i);
    if (!byte_of(character.code_point)) return false;
    i += character.length;
  }
  return true;
}

std::optional<std::string> alphabet_bytes(std::string_view piece) {
  std::string bytes;
  for (std::size_t i = 0; i < piece.size();) {
    const Utf8Character character = utf8_at(piece, i);
    const std::optional<std::uint8_t> byte = byte_of(character.code_point);
    if (!byte) return std::nullopt;
    bytes.push_back(static_cast<char>(*byte));
    i += character.length;
  }
  return bytes;
}

}  // namespace diptych
