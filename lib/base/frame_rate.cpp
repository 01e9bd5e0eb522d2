#include "lib/base/frame_rate.h"

#include <charconv>
#include <numeric>

#include <fmt/format.h>

namespace diptych {
namespace {

constexpr std::int64_t kLargest = 1'000'000;

std::optional<std::int64_t> whole(std::string_view text) {
  std::int64_t value = -1;
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  const bool digits = !text.empty() && text.front() != '-' && error == std::errc() && stop == end;
  return digits && value <= kLargest ? std::optional(value) : std::nullopt;
}

// "29.97" -> 2997/100
std::optional<FrameRate> decimal(std::string_view text) {
  const std::size_t point = text.find('.');
  std::string digits(text.substr(0, point));
  FrameRate rate{0, 1};
  if (point != text.npos) {
    const std::string_view fraction = text.substr(point + 1);
    if (fraction.empty() || fraction.size() > 6) return std::nullopt;
    digits += fraction;
    for (std::size_t i = 0; i < fraction.size(); ++i) rate.seconds *= 10;
  }
  const auto frames = whole(digits);
  if (!frames) return std::nullopt;
  rate.frames = *frames;
  return rate;
}

}  // namespace

std::optional<FrameRate> parse_frame_rate(std::string_view text) {
  const std::size_t slash = text.find('/');
  std::optional<FrameRate> rate;
  if (slash == text.npos) {
    rate = decimal(text);
  } else {
    const auto frames = whole(text.substr(0, slash)), seconds = whole(text.substr(slash + 1));
    if (frames && seconds) rate = FrameRate{*frames, *seconds};
  }
  if (!rate || rate->frames == 0 || rate->seconds == 0) return std::nullopt;
  const std::int64_t common = std::gcd(rate->frames, rate->seconds);
  return FrameRate{rate->frames / common, rate->seconds / common};
}

std::string frame_rate_text(FrameRate rate) {
  return rate.seconds == 1 ? std::to_string(rate.frames)
                           : fmt::format("{}/{}", rate.frames, rate.seconds);
}

}  // namespace diptych
