// What a host can see of row sets: the checks before a launch, and the rows one by one for the
// references.
#pragma once

#include <stdexcept>

#include "kernels/types.h"

namespace diptych::kernels {

// Why no kernel takes these sets of a tensor of `rows` rows, or nullptr. What the lists hold is not
// looked at.
inline const char* row_sets_unsupported(const RowSet& a, const RowSet& b, std::int64_t rows) {
  if (rows < 0) return "the number of rows is negative";
  for (const RowSet& set : {a, b}) {
    if (set.count < 0) return "the number of rows of a set is negative";
    if (set.count > rows) return "a set has more rows than there are";
    if (set.index == nullptr && set.count > 0 && (set.first < 0 || set.first > rows - set.count)) {
      return "a range of rows ends outside the rows";
    }
  }
  if (a.count > rows - b.count) return "the sets have more rows than there are";
  const bool ranges = a.index == nullptr && b.index == nullptr && a.count > 0 && b.count > 0;
  if (ranges && a.first < b.first + b.count && b.first < a.first + a.count) {
    return "the ranges of rows overlap";
  }
  return nullptr;
}

// Calls body(row) for every row of the set. Throws std::out_of_range for a listed row that is not
// among the `rows`.
template <typename Body>
void for_rows(const RowSet& set, std::int64_t rows, const Body& body) {
  for (std::int64_t i = 0; i < set.count; ++i) {
    const std::int64_t row = set.index == nullptr ? set.first + i : set.index[i];
    if (row < 0 || row >= rows) throw std::out_of_range("a listed row is not among the rows");
    body(row);
  }
}

}  // namespace diptych::kernels
