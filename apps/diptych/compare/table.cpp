#include "apps/diptych/compare/table.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>

#include <fmt/format.h>

#include "lib/base/messages.h"
#include "lib/base/stdout.h"

namespace diptych {
namespace {

constexpr std::size_t kWidestName = 40;

std::string number(const std::optional<double>& value, int digits) {
  if (!value) return "-";
  if (std::isinf(*value)) return "equal";
  return fmt::format("{:.{}f}", *value, digits);
}

std::optional<double> ratio_of(const std::optional<double>& a, const std::optional<double>& b) {
  if (!a || !b || *a <= 0) return std::nullopt;
  return *b / *a;
}

struct Cells {
  std::string name;
  std::array<std::string, 7> values;
  std::string note;
};

void print_cells(std::size_t width, const Cells& cells) {
  const auto& v = cells.values;
  std::string line = fmt::format("{:<{}} {:>9} {:>9} {:>7} {:>9} {:>9} {:>8} {:>7}", cells.name,
                                 width, v[0], v[1], v[2], v[3], v[4], v[5], v[6]);
  if (!cells.note.empty()) line += "  " + cells.note;
  fmt::print("{}\n", line);
}

// Of a clip, in which frame it is furthest off.
std::string note_of(const CompareReport& report) {
  const ClipExtremes& all = *report.extremes;
  if (all.max_abs.worst == 0) return "equal";
  const bool is_clip = report.json.contains("per_frame");
  if (!is_clip || !all.ssim) return {};
  return fmt::format("ssim {:.6f} of frame {}", all.ssim->worst, all.ssim->frame);
}

std::optional<double> mean_of(const std::optional<TotalMeasure>& measure) {
  return measure ? std::optional(measure->mean()) : std::nullopt;
}
std::optional<double> worst_of(const std::optional<TotalMeasure>& measure) {
  return measure ? std::optional(measure->worst) : std::nullopt;
}

}  // namespace

void print_lines(const std::string& name, const CompareReport& report) {
  fmt::print("{}: {}\n", printable(name), printable(report.lines.front()));
  for (std::size_t i = 1; i < report.lines.size(); ++i)
    fmt::print("  {}\n", printable(report.lines[i]));
}

void add_total_lines(std::vector<std::string>& lines, const FolderTotals& totals, bool all_equal) {
  if (totals.compared == totals.equal) {
    lines.emplace_back(all_equal ? "all equal" : "all pictures and videos of one size are equal");
    return;
  }
  const auto add = [&](const char* name, const std::optional<TotalMeasure>& measure,
                       const char* unit) {
    if (!measure) return;
    lines.push_back(fmt::format("{}: mean {:.6g}{}, worst {:.6g}{} of {}", name, measure->mean(),
                                unit, measure->worst, unit, measure->worst_of));
  };
  add("ssim", totals.ssim, "");
  add("ms-ssim", totals.ms_ssim, "");
  add("psnr", totals.psnr, " dB");
  add("max abs", totals.max_abs, "");
}

CompareTable::CompareTable(const FolderPairs& pairs) : width_(5) {
  for (const auto& [name, pair] : pairs.by_name)
    width_ = std::clamp(printable(name).size(), width_, kWidestName);
}

void CompareTable::print_head(const CompareOptions& options) const {
  const auto title = [](const std::string& given, const std::filesystem::path& folder) {
    return printable(given.empty() ? folder.string() : given);
  };
  fmt::print("a: {}\nb: {}\n", title(options.titles[0], options.actual),
             title(options.titles[1], options.expected));
  print_cells(width_, {"", {"a s", "b s", "b / a", "ssim", "ms-ssim", "psnr dB", "max abs"}, ""});
}

void CompareTable::print_row(const std::string& name, const FolderPair& pair,
                             const CompareReport& report) const {
  Cells cells;
  cells.name = printable(name);
  cells.values = {number(pair.seconds[0], 3), number(pair.seconds[1], 3),
                  number(ratio_of(pair.seconds[0], pair.seconds[1]), 3)};
  if (report.extremes) {
    const ClipExtremes& all = *report.extremes;
    const auto mean = [](const auto& measure) {
      return measure ? std::optional(measure->mean) : std::nullopt;
    };
    cells.values[3] = number(mean(all.ssim), 6);
    cells.values[4] = number(mean(all.ms_ssim), 6);
    cells.values[5] = number(all.psnr.mean, 2);
    cells.values[6] = number(all.max_abs.worst, 0);
    cells.note = note_of(report);
  } else {
    std::fill(cells.values.begin() + 3, cells.values.end(), "-");
    cells.note = printable(report.lines.front());
  }
  print_cells(width_, cells);
  for (const std::string& gate : report.failed_gates) fmt::print("  {}\n", printable(gate));
  flush_stdout();
}

void CompareTable::print_totals(const FolderTotals& totals) const {
  std::array<std::optional<double>, 2> mean_seconds;
  for (std::size_t side = 0; side < 2 && totals.timed > 0; ++side)
    mean_seconds[side] = totals.seconds[side] / static_cast<double>(totals.timed);
  print_cells(width_, {"mean",
                       {number(mean_seconds[0], 3), number(mean_seconds[1], 3),
                        number(ratio_of(mean_seconds[0], mean_seconds[1]), 3),
                        number(mean_of(totals.ssim), 6), number(mean_of(totals.ms_ssim), 6),
                        number(mean_of(totals.psnr), 2), number(mean_of(totals.max_abs), 1)},
                       ""});
  print_cells(
      width_,
      {"worst",
       {"", "", "", number(worst_of(totals.ssim), 6), number(worst_of(totals.ms_ssim), 6),
        number(worst_of(totals.psnr), 2), number(worst_of(totals.max_abs), 0)},
       totals.ssim && totals.equal < totals.compared ? "ssim of " + printable(totals.ssim->worst_of)
                                                     : ""});
}

}  // namespace diptych
