// The merges of a BPE vocabulary and their use on one word.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "lib/text/flat_tables.h"

namespace diptych {

class MergeTable {
 public:
  explicit MergeTable(std::size_t expected = 0) : merges_(expected) {}
  // Left and right become `merged`. Later calls have a higher rank; a pair given twice keeps the
  // later one. Ids are below 2^31.
  void add(std::int64_t left, std::int64_t right, std::int64_t merged);

  // Replaces all occurrences, left to right, of the pair of lowest rank, again and again until no
  // pair has one. O(n log n), whatever the word.
  void apply(std::vector<std::int64_t>& ids) const;

 private:
  struct Merge {
    std::uint32_t rank = 0;
    std::int32_t merged = 0;
  };
  class Word;

  const Merge* find(std::int64_t left, std::int64_t right) const;

  FlatMap<Merge> merges_;
  std::uint32_t next_rank_ = 0;
};

}  // namespace diptych
