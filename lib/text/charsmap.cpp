#include "lib/text/charsmap.h"

#include <array>
#include <cstddef>

#include "lib/base/error.h"
#include "lib/base/utf8.h"
#include "lib/text/graphemes.h"

namespace diptych {
namespace {

constexpr std::uint8_t kNoDigit = 64;

constexpr std::array<std::uint8_t, 256> base64_digits() {
  constexpr std::string_view kAlphabet =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::array<std::uint8_t, 256> digits{};
  digits.fill(kNoDigit);
  for (std::size_t i = 0; i < kAlphabet.size(); ++i)
    digits[static_cast<std::uint8_t>(kAlphabet[i])] = static_cast<std::uint8_t>(i);
  return digits;
}

// RFC 4648, section 4, with or without the padding.
std::string decode_base64(std::string_view text, std::string_view place) {
  static constexpr std::array<std::uint8_t, 256> kDigits = base64_digits();
  while (text.ends_with('=')) text.remove_suffix(1);
  std::string bytes;
  bytes.reserve(text.size() / 4 * 3 + 3);
  std::uint32_t bits = 0;
  int count = 0;  // of bits that are not in `bytes` yet
  for (const char c : text) {
    const std::uint8_t digit = kDigits[static_cast<std::uint8_t>(c)];
    if (digit == kNoDigit) throw InputError("{}: is not base64", place);
    bits = bits << 6 | digit;
    count += 6;
    if (count < 8) continue;
    count -= 8;
    bytes += static_cast<char>(bits >> count & 0xFF);
  }
  return bytes;
}

std::uint32_t little_endian(std::string_view bytes) {
  std::uint32_t value = 0;
  for (std::size_t i = 4; i-- > 0;) value = value << 8 | static_cast<std::uint8_t>(bytes[i]);
  return value;
}

// A unit of a double array (darts-clone, darts.h, DoubleArrayUnit).
bool has_leaf(std::uint32_t unit) {
  return (unit >> 8 & 1) == 1;
}
std::uint32_t value_of(std::uint32_t unit) {
  return unit & 0x7FFFFFFF;
}
std::uint32_t label_of(std::uint32_t unit) {
  return unit & (0x80000000 | 0xFF);
}
std::uint32_t offset_of(std::uint32_t unit) {
  return unit >> 10 << ((unit & 0x200) >> 6);
}

bool is_continuation(char byte) {
  return (static_cast<std::uint8_t>(byte) & 0xC0) == 0x80;
}

}  // namespace

Charsmap Charsmap::parse(std::string_view base64, std::string_view place) {
  constexpr std::size_t kUnit = sizeof(std::uint32_t);
  const std::string bytes = decode_base64(base64, place);
  const std::string_view all = bytes;
  const std::size_t trie = all.size() < kUnit ? 0 : little_endian(all);
  if (trie == 0 || trie % kUnit != 0 || trie > all.size() - kUnit) {
    throw InputError("{}: its trie has {} bytes of the {} that follow; expected a charsmap", place,
                     trie, all.size() < kUnit ? 0 : all.size() - kUnit);
  }
  Charsmap map;
  map.units_.reserve(trie / kUnit);
  for (std::size_t i = 0; i < trie; i += kUnit)
    map.units_.push_back(little_endian(all.substr(kUnit + i, kUnit)));
  map.replacements_ = all.substr(kUnit + trie);
  about(place, [&] { return check_utf8(map.replacements_); });
  return map;
}

std::string_view Charsmap::replacement(std::uint32_t offset) const {
  const std::string_view rest = std::string_view(replacements_).substr(offset);
  return rest.substr(0, rest.find('\0'));
}

std::optional<std::string_view> Charsmap::find(std::string_view bytes) const {
  std::size_t node = offset_of(units_[0]);
  for (const char byte : bytes) {
    const auto label = static_cast<std::uint8_t>(byte);
    node ^= label;
    // A sound trie stays inside; a node that is not there has another label.
    if (label == 0 || node >= units_.size() || label_of(units_[node]) != label) return {};
    const std::uint32_t unit = units_[node];
    node ^= offset_of(unit);
    if (!has_leaf(unit)) continue;
    if (node >= units_.size()) return {};
    const std::uint32_t offset = value_of(units_[node]);
    if (offset >= replacements_.size() || is_continuation(replacements_[offset])) return {};
    return replacement(offset);
  }
  return {};
}

std::string Charsmap::apply(std::string_view text) const {
  constexpr std::size_t kLongest = 5;  // bytes of a cluster that is looked up as a whole
  std::string mapped;
  mapped.reserve(text.size());
  while (!text.empty()) {
    std::string_view cluster = text.substr(0, first_cluster_length(text));
    text.remove_prefix(cluster.size());
    const auto whole = cluster.size() <= kLongest ? find(cluster) : std::nullopt;
    if (whole) {
      mapped += *whole;
      continue;
    }
    while (!cluster.empty()) {
      const std::string_view character = cluster.substr(0, utf8_at(cluster, 0).length);
      mapped += find(character).value_or(character);
      cluster.remove_prefix(character.size());
    }
  }
  return mapped;
}

}  // namespace diptych
