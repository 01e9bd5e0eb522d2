// What `diptych compare` prints of a pair of files, and of all pairs of two folders.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "apps/diptych/compare/folders.h"
#include "apps/diptych/compare/report.h"
#include "apps/diptych/compare/totals.h"

namespace diptych {

// "name: the first line", the others below it.
void print_lines(const std::string& name, const CompareReport& report);

// "ssim: mean 0.98, worst 0.95 of b.png"; of equal pictures and videos alone that they are equal.
// `all_equal`: as is everything else in the folders.
void add_total_lines(std::vector<std::string>& lines, const FolderTotals& totals, bool all_equal);

// One row for each pair, with the seconds of both sides. All print.
class CompareTable {
 public:
  explicit CompareTable(const FolderPairs& pairs);
  void print_head(const CompareOptions& options) const;
  void print_row(const std::string& name, const FolderPair& pair,
                 const CompareReport& report) const;
  void print_totals(const FolderTotals& totals) const;

 private:
  std::size_t width_;  // of the first column
};

}  // namespace diptych
