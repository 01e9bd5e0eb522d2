// Painters whose captured steps may serve later requests of a session.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "lib/pipelines/bagel_painter.h"

namespace diptych {

class KeptPainters {
 public:
  using Matches = std::function<bool(const BagelPainter&)>;
  // `bytes`: what it holds of the device's memory (BagelMemory::kept_step_bytes()). Where there are
  // kMost already, the oldest goes.
  void add(std::unique_ptr<BagelPainter> painter, std::int64_t bytes);
  // Takes out the latest that matches; null where none does.
  std::unique_ptr<BagelPainter> take(const Matches& matches);
  // Drops the oldest until all hold at most `room` bytes, the latest that matches aside; drops all
  // where `room` is below 0.
  void make_room(std::int64_t room, const Matches& matches);
  void clear() { kept_.clear(); }
  bool empty() const { return kept_.empty(); }

  static constexpr std::size_t kMost = 4;

 private:
  struct Kept {
    std::unique_ptr<BagelPainter> painter;
    std::int64_t bytes = 0;
  };
  std::vector<Kept> kept_;  // the latest last
};

}  // namespace diptych
