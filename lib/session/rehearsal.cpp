#include "lib/session/rehearsal.h"

#include <algorithm>
#include <array>
#include <exception>
#include <utility>

#include <c10/core/InferenceMode.h>
#include <fmt/format.h>

namespace diptych {

std::optional<std::string_view> why_not_rehearsed(const FirstRun& first, at::Device device,
                                                  const MemoryBudget& budget) {
  const std::array<std::pair<bool, std::string_view>, 9> reasons = {{
      {!device.is_cuda(), "the run is on the CPU"},
      {!first.is_known, "it is not known what comes first"},
      {!first.reads_files, "no weights are read from files"},
      {budget.limited, "--max-vram"},
      {!first.is_alone, "other processes have parts of the request"},
      {!first.paints_at_once, "something is read or written ahead of the steps"},
      {!first.has_cfg_mode, "the CFG mode is to be measured"},
      {!first.captures_steps, "the steps are not captured"},
      {!first.keeps_steps_fits, "no room for captured steps that stay"},
  }};
  const auto found = std::ranges::find_if(reasons, [](const auto& each) { return each.first; });
  if (found == reasons.end()) return {};
  return found->second;
}

Rehearsal::~Rehearsal() {
  const std::lock_guard lock(mutex_);
  stopping_ = true;
}

void Rehearsal::start(std::vector<Part> parts) {
  parts_ = std::move(parts);
  thread_ = std::jthread([this] { work(); });
}

void Rehearsal::work() {
  const c10::InferenceMode inference;
  const auto is_stopped = [this] {
    const std::lock_guard lock(mutex_);
    return stopping_;
  };
  std::optional<std::string> failure;
  for (const Part& part : parts_) {
    if (is_stopped()) break;
    const double start = steady_seconds();
    try {
      part.run();
    } catch (const std::exception& error) {
      failure = error.what();
    }
    const std::lock_guard lock(mutex_);
    failure_ = failure;
    if (failure) break;
    seconds_.push_back(steady_seconds() - start);
    changed_.notify_all();
  }
  const std::lock_guard lock(mutex_);
  ended_ = true;
  changed_.notify_all();
}

bool Rehearsal::wait(std::size_t parts) {
  if (!thread_.joinable()) return false;
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return ended_ || seconds_.size() >= parts; });
  return seconds_.size() >= parts;
}

std::string Rehearsal::finish() {
  if (!thread_.joinable()) return "";
  thread_.join();
  std::string took;
  for (std::size_t i = 0; i < seconds_.size(); ++i)
    took += fmt::format("{}{} {:.2f}s", i == 0 ? "" : ", ", parts_[i].name, seconds_[i]);
  if (!failure_) return "rehearsed " + took;
  return fmt::format("the rehearsal of {} failed: {}{}{}", parts_[seconds_.size()].name, *failure_,
                     took.empty() ? "" : "; rehearsed ", took);
}

void Rehearsal::finish(Log& log) {
  const std::string text = finish();
  if (!text.empty()) log.debug("{}", text);
}

}  // namespace diptych
