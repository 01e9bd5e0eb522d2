#include "lib/session/memory/plan.h"

#include <algorithm>

#include <fmt/format.h>

namespace diptych {
namespace {

std::int64_t total(const NamedBytes& parts) {
  std::int64_t bytes = 0;
  for (const auto& [name, part] : parts) bytes += part;
  return bytes;
}

// 0 where there is no such part.
std::int64_t bytes_of(const NamedBytes& parts, std::string_view name) {
  const auto part = std::ranges::find(parts, name, &NamedBytes::value_type::first);
  return part == parts.end() ? 0 : part->second;
}

}  // namespace

std::pair<std::string_view, std::int64_t> largest_part(const NamedBytes& parts) {
  const auto most =
      std::ranges::max_element(parts, {}, [](const auto& part) { return part.second; });
  return most == parts.end() ? std::pair<std::string_view, std::int64_t>("none", 0) : *most;
}

double to_gib(std::int64_t bytes) {
  return static_cast<double>(bytes) / static_cast<double>(std::int64_t{1} << 30);
}

std::int64_t MemoryPlan::held_bytes() const {
  return total(held);
}

std::int64_t MemoryPlan::peak() const {
  return total(held) + largest_part(work).second + slack;
}

std::int64_t MemoryPlan::peak_with_kept_step() const {
  NamedBytes others = work;
  const auto [steps, end] =
      std::ranges::remove(others, kDenoiseStepPart, &NamedBytes::value_type::first);
  others.erase(steps, end);
  return total(held) + bytes_of(held, kKeyValueCachePart) + bytes_of(work, kDenoiseStepPart) +
         largest_part(others).second + slack;
}

std::int64_t MemoryPlan::kept_step_bytes() const {
  return bytes_of(held, kKeyValueCachePart) + bytes_of(held, kDenoiseLayoutPart) +
         bytes_of(work, kDenoiseStepPart);
}

std::string MemoryPlan::summary() const {
  std::string text = fmt::format("{:.1f} GiB:", to_gib(peak()));
  for (const auto& [name, bytes] : held) {
    if (bytes > 0) text += fmt::format(" {} {:.2f},", name, to_gib(bytes));
  }
  const auto& [name, bytes] = largest_part(work);
  return text + fmt::format(" {} {:.2f}, slack {:.2f}", name, to_gib(bytes), to_gib(slack));
}

}  // namespace diptych
