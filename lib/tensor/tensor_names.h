// Names of tensors, and how messages show them: names come from files and may be anything.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace diptych {

struct TensorShape {
  std::string name;
  std::vector<std::int64_t> shape;
};

// "name" in quotes; bytes other than printable ASCII appear as \xNN, long names are cut at 120.
std::string shown_name(std::string_view name);

// "[2, 3]"
std::string shown_shape(std::span<const std::int64_t> shape);

// Keeps the candidate nearest to `wanted` by edit distance. Candidates that differ in more than
// half of the wanted letters are not near.
class NearestName {
 public:
  explicit NearestName(std::string_view wanted) : wanted_(wanted), limit_(wanted.size() / 2 + 1) {}
  void offer(std::string_view candidate);
  const std::string& best() const { return best_; }  // empty: none is near

 private:
  std::string wanted_, best_;
  std::size_t limit_;  // offers must be nearer than this
};

}  // namespace diptych
