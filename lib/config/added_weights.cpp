#include "lib/config/added_weights.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <optional>

#include <fmt/format.h>

#include "lib/config/words.h"

namespace diptych {
namespace {

constexpr double kMostScale = 1e6;  // far beyond any use

std::optional<double> number(std::string_view text) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  const bool whole = error == std::errc() && end == text.data() + text.size() && !text.empty();
  return whole ? std::optional(value) : std::nullopt;
}

}  // namespace

AddedWeights parse_added_weights(std::string_view text, std::span<const std::string_view> parts,
                                 const Subject& where) {
  AddedWeights added;
  const std::size_t equals = std::min(text.find('='), text.size());
  if (std::ranges::find(parts, text.substr(0, equals)) != parts.end() && equals < text.size()) {
    added.part = text.substr(0, equals);
    text.remove_prefix(equals + 1);
  }
  const std::size_t colon = text.rfind(':');
  if (colon != std::string_view::npos) {
    const std::string_view behind = text.substr(colon + 1);
    const auto scale = number(behind);
    const bool is_scale = scale || text.substr(0, colon).ends_with(".safetensors");
    if (is_scale && (!scale || !std::isfinite(*scale) || std::abs(*scale) > kMostScale))
      throw where.error("{}: scale {}: expected a number, such as 0.8", in_quotes(text),
                        in_quotes(behind));
    if (is_scale) {
      added.scale = *scale;
      text = text.substr(0, colon);
    }
  }
  if (text.empty()) throw where.error("is empty; expected [PART=]FILE[:SCALE]");
  if (text.find('\0') != std::string_view::npos) throw where.error("a path with a NUL");
  added.file = text;
  return added;
}

std::string added_weights_text(const AddedWeights& added) {
  return fmt::format("{}{}{}", added.part.empty() ? "" : added.part + "=", added.file.string(),
                     added.scale == 1 ? "" : fmt::format(":{}", added.scale));
}

}  // namespace diptych
