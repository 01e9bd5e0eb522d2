// How the labels of lib/ops/launch_label.h reach the GPU activities of a profile. What is launched
// one by one has the label in whose scope its call lies. A CUDA graph notes, while it is captured,
// the label of each of its nodes, and every replay hands this list to the profile in the name of a
// user scope. A graph that is captured from one stream is a chain, so the activities of a replay,
// in the order of their start, are its nodes in the order in which they were captured.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lib/runtime/launches.h"

namespace diptych {

// Neighbouring nodes of a graph that have the same label; empty: none.
struct LabelRun {
  std::string label;
  std::size_t nodes = 0;
  bool operator==(const LabelRun&) const = default;
};
using GraphLabels = std::vector<LabelRun>;  // all nodes, in the order of the chain

// Makes the list while a graph is captured. `nodes`: how many the graph has at that moment.
class GraphLabelRecorder {
 public:
  void begin(std::string_view label, std::size_t nodes);
  void end(std::size_t nodes);
  GraphLabels finish(std::size_t nodes);

 private:
  void take_until(std::size_t nodes);  // the new ones have the innermost open label

  std::vector<std::string> open_;
  std::size_t taken_ = 0;
  GraphLabels labels_;
};

// The name of the user scope around a replay of a graph, and the labels in it: nothing where the
// name is of another scope.
std::string replay_scope_name(const GraphLabels& labels);
std::optional<GraphLabels> read_replay_scope(std::string_view scope);

// What a profile knows of the host, in its nanoseconds.
struct ProfiledScope {
  std::string name;
  std::int64_t start_ns = 0, end_ns = 0;
};
struct ProfiledCall {
  std::uint64_t launch = 0;  // as of the activities that it launched
  std::int64_t start_ns = 0;
  bool graph = false;  // it launched a graph
};

// Labels the activities of one profile, each list in order of start; what one call launched is in
// one list. `scopes` are those of the thread that launched: nested or apart. Returns how many
// launches of graphs ran another number of activities than was captured. Theirs stay without
// labels.
std::int64_t label_activities(std::span<std::vector<GpuActivity>> lists,
                              std::vector<ProfiledScope> scopes, std::vector<ProfiledCall> calls);

}  // namespace diptych
