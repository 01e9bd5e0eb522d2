#include "apps/diptych/run_summary.h"

#include <fmt/format.h>

#include "lib/base/messages.h"

namespace diptych {

std::string stage_times(const Report& report) {
  constexpr double kGib = 1024.0 * 1024.0 * 1024.0;
  std::string line;
  const auto add = [&](const std::string& part) { line += (line.empty() ? "" : ", ") + part; };
  constexpr double kShown = 0.005;  // less would be 0.00
  for (const auto& [stage, seconds] : report.seconds) {
    if (seconds >= kShown) add(fmt::format("{} {:.2f}s", stage, seconds));
  }
  if (report.steps_per_second > 0) add(fmt::format("{:.2f} it/s", report.steps_per_second));
  if (report.tokens_per_second > 0) add(fmt::format("{:.1f} tok/s", report.tokens_per_second));
  if (report.drafting) add(report.drafting->summary());
  if (report.peak_bytes > 0)
    add(fmt::format("peak {:.2f} GiB", static_cast<double>(report.peak_bytes) / kGib));
  return line;
}

std::string summary_line(const Report& report, MediaKind makes) {
  const std::string_view one = makes == MediaKind::clip ? "video" : "picture";
  const std::size_t count = report.latent_hashes.size();
  const std::string line = stage_times(report);
  return count > 0 ? fmt::format("{}: {}", counted(count, one), line) : line;
}

}  // namespace diptych
