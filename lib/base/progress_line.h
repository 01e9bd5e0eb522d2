// The progress line of a terminal as text: what Progress draws.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace diptych {

struct ProgressState {
  std::string_view stage;
  std::int64_t done = 0, total = 0;
  double seconds = 0;                            // of the stage so far
  std::int64_t items_done = 0, items_total = 0;  // of a batch; none without
};

// "1/4   encode |=====>    | 12/20 - 3.21it/s, eta 2s", shorter than `columns`, so that it never
// wraps. Narrow terminals lose the pace first, then the bar.
std::string progress_line(const ProgressState& state, std::size_t columns);

// Of the terminal behind a descriptor, as it is now; 80 where it does not say.
std::size_t terminal_columns(int descriptor);

}  // namespace diptych
