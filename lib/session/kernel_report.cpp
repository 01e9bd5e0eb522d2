#include "lib/session/kernel_report.h"

#include <algorithm>
#include <map>
#include <string_view>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "lib/base/messages.h"

namespace diptych {
namespace {

using Json = nlohmann::ordered_json;

constexpr double kMilli = 1e3, kMega = 1e-6, kGiga = 1e-9, kTera = 1e-12;
constexpr std::size_t kWidestFamily = 44;

// Copies may run beside kernels: idle is where nothing does.
void add_idle(const std::vector<GpuActivity>& scope, KernelTable& table) {
  const GpuActivity* latest = &scope.front();  // to end, of those so far
  for (const GpuActivity& activity : scope) {
    const auto gap =
        static_cast<double>(std::max<std::int64_t>(activity.start_ns - latest->end_ns, 0)) * kGiga;
    (activity.launch == latest->launch ? table.idle_in_graphs : table.idle_between) += gap;
    if (activity.end_ns > latest->end_ns) latest = &activity;
  }
  table.seconds += static_cast<double>(latest->end_ns - scope.front().start_ns) * kGiga;
}

// "void at::native::elementwise_kernel<4, ...>(int, ...)" -> "at::native::elementwise_kernel".
std::string plain_name(std::string_view name) {
  if (name.starts_with("void ")) name.remove_prefix(5);
  std::string plain;
  int depth = 0;
  constexpr std::string_view kUnnamed = "(anonymous namespace)::";
  while (!name.empty()) {
    if (name.starts_with(kUnnamed)) {
      name.remove_prefix(kUnnamed.size());
      continue;
    }
    const char c = name.front();
    name.remove_prefix(1);
    if (c == '(' && depth == 0) break;
    depth += c == '<' ? 1 : 0;
    if (depth == 0) plain += c;
    depth -= c == '>' ? 1 : 0;
  }
  return plain;
}

std::string family_of(const GpuActivity& activity) {
  if (!activity.kernel) return "copies and fills";
  return activity.label.empty() ? plain_name(activity.name) : activity.label;
}

std::map<std::string, KernelRow> sum_families(const Launches& launched) {
  std::map<std::string, KernelRow> rows;
  for (const std::vector<GpuActivity>& scope : launched.scopes) {
    for (const GpuActivity& activity : scope) {
      KernelRow& row = rows[family_of(activity)];
      ++row.launches;
      row.seconds += static_cast<double>(activity.end_ns - activity.start_ns) * kGiga;
    }
  }
  return rows;
}

// Of a mean step of a picture.
std::vector<KernelWork> mean_work(std::span<const StepKindWork> kinds) {
  double steps = 0;
  for (const StepKindWork& kind : kinds) steps += static_cast<double>(kind.steps);
  std::vector<KernelWork> work;
  for (const StepKindWork& kind : kinds)
    add_work(work, static_cast<double>(kind.steps) / steps, kind.work);
  return work;
}

double share_of_peak(const KernelWork& work, double seconds, const DevicePeaks& peaks) {
  const double flops = work.fp8 ? peaks.fp8_flops : peaks.plain_flops;
  const double multiplied = flops > 0 ? work.flops / flops : 0;
  const double moved = peaks.bytes > 0 ? work.bytes / peaks.bytes : 0;
  return std::max(multiplied, moved) / seconds;
}

std::string row_text(const KernelRow& row, double step_seconds) {
  std::string family = row.family;
  if (family.size() > kWidestFamily)
    family = ".." + family.substr(family.size() - kWidestFamily + 2);
  std::string text =
      fmt::format("  {:<{}}{:>8.1f}{:>10.3f}{:>7.1f}%", printable(family), kWidestFamily,
                  row.launches, kMilli * row.seconds, 100 * row.seconds / step_seconds);
  if (row.bytes == 0) return text + "\n";
  const std::string flops = row.flops > 0 ? fmt::format("{:>9.3f}{:>9.0f}", kTera * row.flops,
                                                        kTera * row.flops / row.seconds)
                                          : fmt::format("{:>18}", "");
  return text + fmt::format("{:>10.1f}{}{:>7.0f}{:>7.1f}%\n", kMega * row.bytes, flops,
                            kGiga * row.bytes / row.seconds, 100 * row.share_of_peak);
}

Spread spread_over(std::span<const FloorPair> pairs, const auto& value) {
  std::vector<double> values;
  for (const FloorPair& pair : pairs) values.push_back(value(pair));
  return spread_of(values);
}

double ratio(const FloorPair& pair) {
  return pair.denoise_seconds / pair.floor_seconds();
}

// Of one kind of step, in all pairs.
Spread kind_seconds(std::span<const FloorPair> pairs, std::size_t kind) {
  return spread_over(pairs, [&](const FloorPair& p) { return p.kinds.at(kind).floor_seconds; });
}

}  // namespace

KernelTable make_kernel_table(const Launches& launched, std::int64_t steps,
                              std::span<const StepKindWork> kinds, const DevicePeaks& peaks) {
  KernelTable table;
  table.peaks = peaks;
  table.unlabelled_graphs = launched.unlabelled_graphs;
  for (const std::vector<GpuActivity>& scope : launched.scopes) {
    if (!scope.empty()) add_idle(scope, table);
  }
  const auto count = static_cast<double>(steps);
  for (double* sum : {&table.seconds, &table.idle_in_graphs, &table.idle_between}) *sum /= count;
  const std::vector<KernelWork> work = mean_work(kinds);
  for (auto& [family, row] : sum_families(launched)) {
    row.family = family;
    row.launches /= count;
    row.seconds /= count;
    const auto known = std::ranges::find(work, family, &KernelWork::family);
    if (known != work.end()) {
      row.flops = known->flops;
      row.bytes = known->bytes;
      row.share_of_peak = share_of_peak(*known, row.seconds, peaks);
    }
    table.rows.push_back(row);
  }
  std::ranges::stable_sort(table.rows, std::ranges::greater(), &KernelRow::seconds);
  return table;
}

std::string kernel_table_text(const KernelTable& table, const std::string& dtype) {
  const DevicePeaks& peaks = table.peaks;
  std::string text = fmt::format(
      "  kernels of a mean step, under the profiler: {:.3f} ms, of these idle {:.3f} ms inside "
      "CUDA "
      "graphs and {:.3f} ms between launches\n  peaks, measured: {:.0f} TFLOP/s {}{}, {:.0f} GB/s "
      "copied\n",
      kMilli * table.seconds, kMilli * table.idle_in_graphs, kMilli * table.idle_between,
      kTera * peaks.plain_flops, dtype,
      peaks.fp8_flops > 0 ? fmt::format(", {:.0f} TFLOP/s fp8", kTera * peaks.fp8_flops) : "",
      kGiga * peaks.bytes);
  text += fmt::format("  {:<{}}{:>8}{:>10}{:>8}{:>10}{:>9}{:>9}{:>7}{:>8}\n", "", kWidestFamily,
                      "count", "ms", "share", "MB", "TFLOP", "TFLOP/s", "GB/s", "of peak");
  for (const KernelRow& row : table.rows) text += row_text(row, table.seconds);
  if (table.unlabelled_graphs > 0) {
    text += fmt::format("  {} ran other kernels than were captured: these are listed by name\n",
                        counted(static_cast<std::size_t>(table.unlabelled_graphs),
                                "launch of a CUDA graph", "launches of CUDA graphs"));
  }
  return text;
}

Json kernel_table_json(const KernelTable& table) {
  Json json = {{"seconds_per_step", table.seconds},
               {"idle_in_graphs_seconds", table.idle_in_graphs},
               {"idle_between_launches_seconds", table.idle_between},
               {"peak_flops_per_second", table.peaks.plain_flops},
               {"peak_bytes_per_second", table.peaks.bytes},
               {"families", Json::array()}};
  if (table.peaks.fp8_flops > 0) json["peak_fp8_flops_per_second"] = table.peaks.fp8_flops;
  if (table.unlabelled_graphs > 0) json["unlabelled_graph_launches"] = table.unlabelled_graphs;
  for (const KernelRow& row : table.rows) {
    Json each = {{"family", row.family},
                 {"launches", row.launches},
                 {"seconds", row.seconds},
                 {"share", row.seconds / table.seconds}};
    if (row.bytes > 0) {
      each["bytes"] = row.bytes;
      each["bytes_per_second"] = row.bytes / row.seconds;
      each["share_of_peak"] = row.share_of_peak;
    }
    if (row.flops > 0) {
      each["flops"] = row.flops;
      each["flops_per_second"] = row.flops / row.seconds;
    }
    json["families"].push_back(std::move(each));
  }
  return json;
}

Json spread_json(const Spread& s) {
  return {{"min", s.min}, {"p25", s.p25}, {"median", s.median}, {"p75", s.p75},
          {"p90", s.p90}, {"max", s.max}, {"iqr", s.iqr()}};
}

double FloorPair::floor_seconds() const {
  double seconds = 0;
  for (const StepKindWork& kind : kinds)
    seconds += static_cast<double>(kind.steps) * kind.floor_seconds;
  return seconds;
}

std::string floor_text(std::span<const FloorPair> pairs) {
  std::vector<std::string> kinds;
  for (std::size_t k = 0; k < pairs.front().kinds.size(); ++k) {
    const StepKindWork& kind = pairs.front().kinds[k];
    kinds.push_back(fmt::format(
        "{} of {}, {:.3f} ms each", counted(static_cast<std::size_t>(kind.steps), "step"),
        counted(static_cast<std::size_t>(kind.contexts), "branch", "branches"),
        kMilli * kind_seconds(pairs, k).median));
  }
  const Spread floor = spread_over(pairs, [](const FloorPair& p) { return p.floor_seconds(); });
  const Spread over = spread_over(pairs, ratio);
  return fmt::format(
      "  floor (products and attention alone, a CUDA graph): {:.4f} s an image; {}\n"
      "  denoise / floor {:.4f}  (quartiles {:.4f} to {:.4f})\n",
      floor.median, fmt::join(kinds, "; "), over.median, over.p25, over.p75);
}

Json floor_json(std::span<const FloorPair> pairs) {
  Json json = {
      {"seconds_per_image",
       spread_json(spread_over(pairs, [](const FloorPair& p) { return p.floor_seconds(); }))},
      {"denoise_over_floor", spread_json(spread_over(pairs, ratio))},
      {"steps", Json::array()}};
  for (std::size_t k = 0; k < pairs.front().kinds.size(); ++k) {
    const StepKindWork& kind = pairs.front().kinds[k];
    json["steps"].push_back({{"branches", kind.contexts},
                             {"steps", kind.steps},
                             {"seconds", spread_json(kind_seconds(pairs, k))}});
  }
  return json;
}

}  // namespace diptych
