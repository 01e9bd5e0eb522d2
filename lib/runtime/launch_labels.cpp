#include "lib/runtime/launch_labels.h"

#include <algorithm>
#include <charconv>
#include <unordered_map>
#include <utility>

#include <fmt/format.h>

#include "lib/ops/launch_label.h"

namespace diptych {
namespace {

constexpr std::string_view kReplay = "replay of a graph\n";  // then lines "NODES LABEL"

// The innermost scope around each call, by its launch; none where there is no scope.
struct Origin {
  const ProfiledScope* scope = nullptr;
  bool graph = false;
};
using Origins = std::unordered_map<std::uint64_t, Origin>;

Origins origins_of(std::vector<ProfiledScope>& scopes, std::vector<ProfiledCall>& calls) {
  std::ranges::sort(scopes, [](const ProfiledScope& a, const ProfiledScope& b) {
    return a.start_ns != b.start_ns ? a.start_ns < b.start_ns : a.end_ns > b.end_ns;
  });
  std::ranges::sort(calls, {}, &ProfiledCall::start_ns);
  Origins origins;
  std::vector<const ProfiledScope*> open;
  auto next = scopes.begin();
  for (const ProfiledCall& call : calls) {
    for (; next != scopes.end() && next->start_ns <= call.start_ns; ++next) open.push_back(&*next);
    while (!open.empty() && open.back()->end_ns <= call.start_ns) open.pop_back();
    origins[call.launch] = {open.empty() ? nullptr : open.back(), call.graph};
  }
  return origins;
}

// Whether the activities are as many as the graph's nodes.
bool label_graph(const std::vector<GpuActivity*>& activities, const GraphLabels& labels) {
  std::size_t nodes = 0;
  for (const LabelRun& run : labels) nodes += run.nodes;
  if (nodes != activities.size()) return false;
  auto activity = activities.begin();
  for (const LabelRun& run : labels) {
    for (std::size_t i = 0; i < run.nodes; ++i) (*activity++)->label = run.label;
  }
  return true;
}

// -> graphs that ran another number of activities
std::int64_t label_list(std::vector<GpuActivity>& list, const Origins& origins) {
  std::unordered_map<std::uint64_t, std::vector<GpuActivity*>> of_graphs;
  for (GpuActivity& activity : list) {
    const auto origin = origins.find(activity.launch);
    if (origin == origins.end() || origin->second.scope == nullptr) continue;
    if (origin->second.graph) {
      of_graphs[activity.launch].push_back(&activity);
    } else if (const auto label = LaunchLabel::read(origin->second.scope->name)) {
      activity.label = *label;
    }
  }
  std::int64_t others = 0;
  for (const auto& [launch, activities] : of_graphs) {
    const auto labels = read_replay_scope(origins.at(launch).scope->name);
    if (labels && !label_graph(activities, *labels)) ++others;
  }
  return others;
}

}  // namespace

void GraphLabelRecorder::begin(std::string_view label, std::size_t nodes) {
  take_until(nodes);
  open_.emplace_back(label);
}

void GraphLabelRecorder::end(std::size_t nodes) {
  take_until(nodes);
  open_.pop_back();
}

GraphLabels GraphLabelRecorder::finish(std::size_t nodes) {
  take_until(nodes);
  return std::move(labels_);
}

void GraphLabelRecorder::take_until(std::size_t nodes) {
  const std::string label = open_.empty() ? "" : open_.back();
  const std::size_t added = nodes - std::exchange(taken_, nodes);
  if (added == 0) return;
  if (!labels_.empty() && labels_.back().label == label) {
    labels_.back().nodes += added;
  } else {
    labels_.push_back({label, added});
  }
}

std::string replay_scope_name(const GraphLabels& labels) {
  std::string name(kReplay);
  for (const LabelRun& run : labels) name += fmt::format("{} {}\n", run.nodes, run.label);
  return name;
}

std::optional<GraphLabels> read_replay_scope(std::string_view scope) {
  if (!scope.starts_with(kReplay)) return std::nullopt;
  scope.remove_prefix(kReplay.size());
  GraphLabels labels;
  while (!scope.empty()) {
    const std::string_view line = scope.substr(0, scope.find('\n'));
    scope.remove_prefix(line.size() + 1);
    const std::size_t space = line.find(' ');
    LabelRun run = {std::string(line.substr(space + 1)), 0};
    std::from_chars(line.data(), line.data() + space, run.nodes);
    labels.push_back(std::move(run));
  }
  return labels;
}

std::int64_t label_activities(std::span<std::vector<GpuActivity>> lists,
                              std::vector<ProfiledScope> scopes, std::vector<ProfiledCall> calls) {
  const Origins origins = origins_of(scopes, calls);
  std::int64_t others = 0;
  for (std::vector<GpuActivity>& list : lists) others += label_list(list, origins);
  return others;
}

}  // namespace diptych
