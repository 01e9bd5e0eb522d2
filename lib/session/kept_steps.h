// Painters whose captured steps may serve later requests of a session, the latest ones.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <iterator>
#include <memory>
#include <utility>
#include <vector>

namespace diptych {

template <typename Painter>
class KeptSteps {
 public:
  using Matches = std::function<bool(const Painter&)>;
  static constexpr std::size_t kMost = 4;

  // `bytes`: what it holds of the device's memory. Where there are kMost already, the oldest goes.
  void add(std::unique_ptr<Painter> painter, std::int64_t bytes) {
    if (kept_.size() == kMost) kept_.erase(kept_.begin());
    kept_.push_back({std::move(painter), bytes});
  }

  // Takes out the latest that matches; null where none does.
  std::unique_ptr<Painter> take(const Matches& matches) {
    const auto latest = find_latest(matches);
    if (latest == kept_.rend()) return nullptr;
    std::unique_ptr<Painter> painter = std::move(latest->painter);
    kept_.erase(std::next(latest).base());
    return painter;
  }

  // Drops the oldest until all hold at most `room` bytes; drops all where that is below 0. The
  // latest that matches goes last, and `own` of its bytes do not count: it may be taken again.
  void make_room(std::int64_t room, const Matches& matches, std::int64_t own) {
    if (room < 0) return clear();
    const auto latest = find_latest(matches);
    const Painter* const spared = latest == kept_.rend() ? nullptr : latest->painter.get();
    const auto is_other = [&](const Kept& kept) { return kept.painter.get() != spared; };
    const auto held = [&] {
      std::int64_t bytes = 0;
      for (const Kept& kept : kept_)
        bytes += is_other(kept) ? kept.bytes : std::max<std::int64_t>(0, kept.bytes - own);
      return bytes;
    };
    while (held() > room) {
      const auto other = std::ranges::find_if(kept_, is_other);
      kept_.erase(other == kept_.end() ? kept_.begin() : other);
    }
  }

  void clear() { kept_.clear(); }
  bool empty() const { return kept_.empty(); }

 private:
  struct Kept {
    std::unique_ptr<Painter> painter;
    std::int64_t bytes = 0;
  };
  auto find_latest(const Matches& matches) {
    return std::find_if(kept_.rbegin(), kept_.rend(),
                        [&](const Kept& kept) { return matches(*kept.painter); });
  }

  std::vector<Kept> kept_;  // the latest last
};

}  // namespace diptych
