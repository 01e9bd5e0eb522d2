#include "lib/session/drafting_report.h"

#include <algorithm>
#include <numeric>

#include <fmt/format.h>

namespace diptych {

double DraftingReport::mean() const {
  if (acceptance.empty()) return 0;
  const auto sum = std::accumulate(acceptance.begin(), acceptance.end(), std::int64_t{0});
  return static_cast<double>(sum) / static_cast<double>(acceptance.size());
}

std::vector<double> DraftingReport::position_rates() const {
  std::vector<double> rates;
  for (std::int64_t draft = 1; draft < block_size; ++draft) {
    const auto reached =
        std::ranges::count_if(acceptance, [&](std::int64_t length) { return length > draft; });
    rates.push_back(acceptance.empty()
                        ? 0
                        : static_cast<double>(reached) / static_cast<double>(acceptance.size()));
  }
  return rates;
}

std::vector<std::int64_t> DraftingReport::histogram() const {
  std::vector<std::int64_t> counts(static_cast<std::size_t>(block_size) + 1);
  for (const std::int64_t length : acceptance)
    ++counts.at(static_cast<std::size_t>(std::clamp<std::int64_t>(length, 0, block_size)));
  return counts;
}

void DraftingReport::add(const DraftingReport& other) {
  block_size = std::max(block_size, other.block_size);
  acceptance.insert(acceptance.end(), other.acceptance.begin(), other.acceptance.end());
  switched_off |= other.switched_off;
}

std::string DraftingReport::summary() const {
  std::string text =
      fmt::format("{:.2f} tokens a verification of {}, accepted", mean(), block_size);
  for (const double rate : position_rates()) text += fmt::format(" {:.2f}", rate);
  if (switched_off) text += "; the drafter was switched off, which was faster";
  return text;
}

double mean_of_means(std::span<const DraftingReport> texts) {
  double sum = 0;
  for (const DraftingReport& text : texts) sum += text.mean();
  return texts.empty() ? 0 : sum / static_cast<double>(texts.size());
}

}  // namespace diptych
