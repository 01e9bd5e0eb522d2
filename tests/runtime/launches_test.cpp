#include "lib/runtime/launches.h"

#include <stdexcept>

#include <ATen/record_function.h>
#include <doctest/doctest.h>

#include "lib/ops/launch_label.h"
#include "lib/runtime/launch_labels.h"

namespace diptych {
namespace {

TEST_CASE("record_launches: work on the CPU launches nothing, and runs once") {
  int runs = 0;
  const auto launches = record_launches("counted", [&] {
    RECORD_USER_SCOPE("counted");
    runs += at::ones({3}).sum().item<int>();
  });
  CHECK_FALSE(launches.has_value());
  CHECK(runs == 3);
}

TEST_CASE("record_launches: what throws leaves no profiler behind") {
  const auto fail = [] { throw std::runtime_error("stop"); };
  CHECK_THROWS_WITH_AS(record_launches("counted", fail), "stop", std::runtime_error);
  CHECK_FALSE(record_launches("counted", [] { at::ones({3}); }).has_value());
}

using Labels = std::vector<std::string>;

GpuActivity activity(std::uint64_t launch) {
  return {"kernel", true, 0, 1, launch, {}};
}

Labels labels_of(const std::vector<GpuActivity>& activities) {
  Labels labels;
  for (const GpuActivity& each : activities) labels.push_back(each.label);
  return labels;
}

TEST_CASE("LaunchLabel: a user scope with what and which rows, and nothing without a name") {
  static thread_local std::vector<std::string> seen;
  const auto handle = at::addThreadLocalCallback(
      at::RecordFunctionCallback([](const at::RecordFunction& f)
                                     -> std::unique_ptr<at::ObserverContext> {
        seen.emplace_back(f.name());
        return nullptr;
      }).scopes({at::RecordScope::USER_SCOPE}));
  {
    const LaunchLabel outer("norm");
    const LaunchLabel inner(LaunchName{"qkv_proj", "gen"}), none(LaunchName{});
  }
  at::removeCallback(handle);
  const LaunchLabel unheard("norm");
  CHECK(seen == Labels{"launch: norm", "launch: qkv_proj gen"});
  CHECK(LaunchLabel::read(seen.at(1)).value() == "qkv_proj gen");
  CHECK_FALSE(LaunchLabel::read("denoise").has_value());
}

TEST_CASE("GraphLabelRecorder: each node has the innermost label that was open") {
  GraphLabelRecorder recorder;
  recorder.begin("qkv", 1);  // the first node has none
  recorder.begin("quantise", 1);
  recorder.end(2);
  recorder.end(4);
  recorder.begin("qkv", 4);
  recorder.end(5);
  recorder.begin("nothing", 5);
  recorder.end(5);
  const GraphLabels labels = recorder.finish(7);
  CHECK((labels == GraphLabels{{"", 1}, {"quantise", 1}, {"qkv", 3}, {"", 2}}));
  CHECK((read_replay_scope(replay_scope_name(labels)) == labels));
  CHECK((read_replay_scope(replay_scope_name({})) == GraphLabels{}));
  CHECK_FALSE(read_replay_scope("launch: norm").has_value());
}

TEST_CASE("label_activities: launched one by one, by the innermost scope around the call") {
  const std::vector<ProfiledScope> scopes = {{"launch: rope", 50, 60},
                                             {"launch: quantise rows", 20, 30},
                                             {"launch: qkv_proj gen", 10, 40}};
  const std::vector<ProfiledCall> calls = {{5, 55, false}, {1, 5, false},  {2, 12, false},
                                           {3, 25, false}, {4, 35, false}, {6, 60, false}};
  // The GPU is behind the host, and what no call launched has no label.
  std::vector<std::vector<GpuActivity>> lists = {
      {activity(1), activity(2), activity(3)},
      {activity(4), activity(5), activity(6), activity(7)}};
  CHECK(label_activities(lists, scopes, calls) == 0);
  CHECK(labels_of(lists[0]) == Labels{"", "qkv_proj gen", "quantise rows"});
  CHECK(labels_of(lists[1]) == Labels{"qkv_proj gen", "rope", "", ""});
}

TEST_CASE("label_activities: a graph's, by the labels of its nodes, where there are as many") {
  const GraphLabels nodes = {{"norm", 1}, {"", 1}, {"qkv_proj gen", 2}};
  const std::vector<ProfiledScope> scopes = {{replay_scope_name(nodes), 10, 20},
                                             {replay_scope_name(nodes), 30, 40},
                                             {replay_scope_name({}), 50, 60},
                                             {"launch: norm", 70, 80}};
  // What else is launched in a replay's scope is no part of the graph.
  const std::vector<ProfiledCall> calls = {
      {1, 11, false}, {2, 12, true}, {3, 32, true}, {4, 52, true}, {5, 72, true}};
  std::vector<std::vector<GpuActivity>> lists = {
      {activity(1), activity(2), activity(2), activity(2), activity(2)},
      {activity(3), activity(3), activity(3)},
      {activity(4)},
      {activity(5)}};
  CHECK(label_activities(lists, scopes, calls) == 2);
  CHECK(labels_of(lists[0]) == Labels{"", "norm", "", "qkv_proj gen", "qkv_proj gen"});
  CHECK(labels_of(lists[1]) == Labels{"", "", ""});
  CHECK(labels_of(lists[2]) == Labels{""});
  CHECK(labels_of(lists[3]) == Labels{""});
}

}  // namespace
}  // namespace diptych
