#include "lib/base/progress_line.h"

#include <algorithm>

#include <fmt/format.h>
#include <sys/ioctl.h>

namespace diptych {
namespace {

constexpr std::size_t kMostCells = 50, kLeastCells = 8;
constexpr std::size_t kUsualColumns = 80;
// The place of the pace is kept, so that the bar does not change its length with it.
constexpr std::size_t kPace = 24;

std::string rate_text(double per_second) {
  return per_second >= 1 ? fmt::format("{:.2f}it/s", per_second)
                         : fmt::format("{:.2f}s/it", 1 / per_second);
}

// Nothing before the first is done.
std::string pace_text(const ProgressState& state) {
  const double rate = state.seconds > 0 ? static_cast<double>(state.done) / state.seconds : 0;
  if (rate <= 0) return {};
  return fmt::format(" - {}, eta {:.0f}s", rate_text(rate),
                     static_cast<double>(state.total - state.done) / rate);
}

std::string bar_text(const ProgressState& state, std::size_t cells) {
  const auto all = static_cast<std::int64_t>(cells);
  const std::int64_t filled =
      state.total > 0 ? std::clamp<std::int64_t>(state.done * all / state.total, 0, all) : 0;
  std::string bar(static_cast<std::size_t>(filled), '=');
  if (filled > 0 && filled < all) bar.back() = '>';
  bar.resize(cells, ' ');
  return bar;
}

}  // namespace

std::string progress_line(const ProgressState& state, std::size_t columns) {
  const std::size_t room = columns > 0 ? columns - 1 : 0;  // the last column may wrap
  const std::string items =
      state.items_total > 0 ? fmt::format("{}/{} ", state.items_done, state.items_total) : "";
  const std::string head = fmt::format("{}{:>8} ", items, state.stage);
  const std::string count = fmt::format("{}/{}", state.done, state.total);
  const std::size_t fixed = head.size() + count.size() + 3;  // "|" and "| "
  for (const bool with_pace : {true, false}) {
    const std::size_t rest = fixed + (with_pace ? kPace : 0);
    if (rest + kLeastCells > room) continue;
    const std::string bar = bar_text(state, std::min(kMostCells, room - rest));
    std::string line = fmt::format("{}|{}| {}", head, bar, count);
    if (with_pace) line += pace_text(state);
    return line.substr(0, room);
  }
  return (head + count).substr(0, room);
}

std::size_t terminal_columns(int descriptor) {
  winsize size{};
  const bool known = ioctl(descriptor, TIOCGWINSZ, &size) == 0 && size.ws_col > 0;
  return known ? size.ws_col : kUsualColumns;
}

}  // namespace diptych
