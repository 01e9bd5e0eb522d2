// `auto`: the first backend in order of preference that can serve a call, and one line for each
// reason why those before it could not.
#include <algorithm>
#include <mutex>
#include <set>

#include <fmt/ranges.h>

#include "lib/attention/backends.h"
#include "lib/base/error.h"

namespace diptych {
namespace {

class AutoAttention final : public AttentionBackend {
 public:
  AutoAttention(std::vector<std::unique_ptr<AttentionBackend>> preferred, SayFn say, void* context)
      : preferred_(std::move(preferred)), say_(say), context_(context) {}

  std::string_view name() const override { return "auto"; }

  std::optional<std::string> unsupported(const AttentionCall& call) const override {
    return every_reason(
        [&call](const AttentionBackend& backend) { return backend.unsupported(call); });
  }

  std::optional<std::string> prepare(const AttentionCall& call) const override {
    return every_reason([&call](const AttentionBackend& backend) { return backend.prepare(call); });
  }

  Tensor forward(const AttentionCall& call) const override {
    std::string reasons;
    for (const AttentionBackend* backend : order(call)) {
      const std::optional<std::string> reason = backend->prepare(call);
      if (!reason) {
        note(backend->name(), reasons);
        return backend->forward(call);
      }
      reasons += fmt::format("{}{}: {}", reasons.empty() ? "" : "; ", backend->name(), *reason);
    }
    throw InputError("attention: no backend can serve this call ({})", reasons);
  }

  std::string served_by() const override {
    const std::lock_guard lock(mutex_);
    return fmt::format("{}", fmt::join(served_, ", "));
  }

 private:
  // A cuDNN plan takes longer to build (about 30 ms on an H200) than a call with few queries, or a
  // prefill that happens once, can save: those go to the backends without plans first.
  std::vector<const AttentionBackend*> order(const AttentionCall& call) const {
    constexpr std::int64_t kFewQueries = 128;
    std::vector<const AttentionBackend*> backends;
    for (const auto& backend : preferred_) backends.push_back(backend.get());
    if (call.causal || call.lengths->max_q < kFewQueries) {
      std::stable_partition(backends.begin(), backends.end(),
                            [](const AttentionBackend* b) { return b->name() == "flash"; });
    }
    return backends;
  }

  template <typename Ask>
  std::optional<std::string> every_reason(Ask&& ask) const {
    std::string reasons;
    for (const auto& backend : preferred_) {
      const std::optional<std::string> reason = ask(*backend);
      if (!reason) return std::nullopt;
      reasons += fmt::format("{}{}: {}", reasons.empty() ? "" : "; ", backend->name(), *reason);
    }
    return reasons;
  }

  void note(std::string_view server, const std::string& reasons) const {
    const std::lock_guard lock(mutex_);
    if (std::find(served_.begin(), served_.end(), server) == served_.end()) {
      served_.emplace_back(server);
    }
    if (reasons.empty() || !said_.insert(reasons).second || say_ == nullptr) return;
    say_(context_, fmt::format("attention takes {} ({})", server, reasons));
  }

  std::vector<std::unique_ptr<AttentionBackend>> preferred_;
  SayFn say_;
  void* context_;
  mutable std::mutex mutex_;  // guards the two below
  mutable std::vector<std::string> served_;
  mutable std::set<std::string, std::less<>> said_;
};

}  // namespace

std::unique_ptr<AttentionBackend> make_auto(
    std::vector<std::unique_ptr<AttentionBackend>> preferred, SayFn say, void* context) {
  return std::make_unique<AutoAttention>(std::move(preferred), say, context);
}

}  // namespace diptych
