#include "lib/runtime/launches.h"

#include <algorithm>
#include <memory>
#include <set>
#include <vector>

#include <kineto/ActivityType.h>
#include <torch/csrc/autograd/profiler_kineto.h>

#include "lib/ops/launch_label.h"
#include "lib/runtime/launch_labels.h"

namespace diptych {
namespace {

namespace profiler = torch::autograd::profiler;
using Activity = libkineto::ActivityType;
using Event = profiler::KinetoEvent;

// On while it lives, so that it goes off also where the work throws.
class Profile {
 public:
  Profile() {
    const profiler::ProfilerConfig config(profiler::ProfilerState::KINETO);
    const std::set activities = {profiler::ActivityType::CPU, profiler::ActivityType::CUDA};
    profiler::prepareProfiler(config, activities);
    // Without other scopes no operator is noted, which would cost time and memory.
    profiler::enableProfiler(config, activities, {at::RecordScope::USER_SCOPE});
  }
  ~Profile() {
    if (on_) profiler::disableProfiler();
  }
  Profile(const Profile&) = delete;
  Profile& operator=(const Profile&) = delete;
  std::unique_ptr<profiler::ProfilerResult> finish() {
    on_ = false;
    return profiler::disableProfiler();
  }

 private:
  bool on_ = true;
};

Activity activity(const Event& event) {
  return static_cast<Activity>(event.activityType());
}

bool launches(const std::string& name) {
  return name.starts_with("cudaLaunch") || name.starts_with("cuLaunch") ||
         name.starts_with("cudaGraphLaunch") || name.starts_with("cuGraphLaunch");
}

// libtorch's allocator, which calls these for no memory that it has at hand, is in the runtime API.
bool allocates(const std::string& name) {
  return name.starts_with("cudaMalloc") || name.starts_with("cudaFree") ||
         name.starts_with("cuMemCreate") || name.starts_with("cuMemRelease");
}

bool waits(const std::string& name) {
  return name.find("Synchronize") != name.npos;
}

GpuActivity gpu_activity(const Event& event) {
  const auto start = static_cast<std::int64_t>(event.startNs());
  return {event.name(),
          activity(event) == Activity::CONCURRENT_KERNEL,
          start,
          start + static_cast<std::int64_t>(event.durationNs()),
          event.correlationId(),
          {}};
}

bool calls_runtime(const Event& event) {
  return activity(event) == Activity::CUDA_RUNTIME || activity(event) == Activity::CUDA_DRIVER;
}

// Puts labels on what the scopes launched.
void label_launches(const std::vector<Event>& events, Launches& launched) {
  std::vector<ProfiledScope> scopes;
  std::vector<ProfiledCall> calls;
  for (const Event& event : events) {
    const auto start = static_cast<std::int64_t>(event.startNs());
    if (activity(event) == Activity::USER_ANNOTATION) {
      scopes.push_back({event.name(), start, static_cast<std::int64_t>(event.endNs())});
    } else if (calls_runtime(event)) {
      calls.push_back(
          {event.correlationId(), start, event.name().find("GraphLaunch") != std::string::npos});
    }
  }
  std::erase_if(scopes, [](const ProfiledScope& scope) {
    return !LaunchLabel::read(scope.name) && !read_replay_scope(scope.name);
  });
  launched.unlabelled_graphs =
      label_activities(launched.scopes, std::move(scopes), std::move(calls));
}

// What the host did in a scope, in nanoseconds.
struct HostCalls {
  std::int64_t last_launch = 0;
  std::vector<std::int64_t> waits;
};

void note(const Event& event, Launches& launched, std::vector<GpuActivity>& scope,
          HostCalls& calls) {
  switch (activity(event)) {
    case Activity::CONCURRENT_KERNEL:
      ++launched.kernels;
      scope.push_back(gpu_activity(event));
      break;
    case Activity::GPU_MEMCPY:
    case Activity::GPU_MEMSET:
      ++launched.copies;
      scope.push_back(gpu_activity(event));
      break;
    case Activity::CUDA_RUNTIME:
    case Activity::CUDA_DRIVER:
      if (launches(event.name())) {
        ++launched.calls;
        calls.last_launch = std::max<std::int64_t>(calls.last_launch, event.startNs());
      }
      if (waits(event.name())) calls.waits.push_back(event.startNs());
      launched.allocations += allocates(event.name()) ? 1 : 0;
      break;
    default:
      break;
  }
}

}  // namespace

std::optional<Launches> record_launches(std::string_view scope, const std::function<void()>& work) {
  Profile profile;
  work();
  const auto result = profile.finish();
  std::vector<const Event*> scopes;
  for (const Event& event : result->events()) {
    if (activity(event) == Activity::USER_ANNOTATION && event.name() == scope)
      scopes.push_back(&event);
  }
  Launches launched;
  launched.scopes.resize(scopes.size());
  std::vector<HostCalls> calls(scopes.size());
  for (const Event& event : result->events()) {
    const auto inside = std::ranges::find_if(scopes, [&](const Event* s) {
      return event.startNs() >= s->startNs() && event.startNs() < s->endNs();
    });
    if (inside == scopes.end()) continue;
    const auto which = static_cast<std::size_t>(inside - scopes.begin());
    note(event, launched, launched.scopes[which], calls[which]);
  }
  for (const HostCalls& of : calls) {
    launched.waits +=
        std::ranges::count_if(of.waits, [&](std::int64_t wait) { return wait < of.last_launch; });
  }
  for (std::vector<GpuActivity>& activities : launched.scopes)
    std::ranges::stable_sort(activities, {}, &GpuActivity::start_ns);
  label_launches(result->events(), launched);
  return launched.kernels > 0 ? std::optional(std::move(launched)) : std::nullopt;
}

}  // namespace diptych
