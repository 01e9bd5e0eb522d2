// Frames per second as a fraction, as containers hold them: 24, 25/2, 30000/1001.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace diptych {

struct FrameRate {
  std::int64_t frames = 0, seconds = 1;  // both above 0 in a rate that is one

  double value() const { return static_cast<double>(frames) / static_cast<double>(seconds); }
  bool operator==(const FrameRate&) const = default;
};

// What is written lies between these.
inline constexpr double kMinFrameRate = 1, kMaxFrameRate = 120;

// "24", "12.5" or "30000/1001", in lowest terms; nothing for another text and for rates that are
// not above 0, or whose numbers exceed a million once they are whole.
std::optional<FrameRate> parse_frame_rate(std::string_view text);
std::string frame_rate_text(FrameRate rate);  // "24" or "30000/1001"

}  // namespace diptych
