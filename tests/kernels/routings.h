// How the rows of a call may be shared out between two sets of weights.
#pragma once

#include <string>
#include <vector>

#include <ATen/ATen.h>

#include "kernels/types.h"
#include "tests/kernels/kernel_dtype.h"

namespace diptych::testing {

struct RoutedSet {
  Tensor rows;        // int64 [count], on the CPU
  bool list = false;  // given as such; else the rows are a range
  std::int64_t first() const { return rows.numel() > 0 ? rows[0].item<std::int64_t>() : 0; }
  // `there`: `rows` on the device that is to read them.
  kernels::RowSet kernel_rows(const Tensor& there) const {
    return {list ? there.const_data_ptr<std::int64_t>() : nullptr, list ? 0 : first(),
            rows.numel()};
  }
};

struct Routing {
  std::string name;
  std::int64_t rows = 0;
  RoutedSet sets[kernels::kRowSets];
  Tensor routed() const { return at::cat({sets[0].rows, sets[1].rows}); }
};

inline Tensor rows_between(std::int64_t begin, std::int64_t end) {
  return at::arange(begin, end, at::kLong);
}

// Of `rows` rows, at least 1.
inline std::vector<Routing> routings(std::int64_t rows) {
  at::Generator generator = at::detail::createCPUGenerator(static_cast<std::uint64_t>(rows));
  const Tensor none = rows_between(0, 0);
  const Tensor shuffled = at::randperm(rows, generator, at::kLong);
  std::vector<Routing> all;
  const auto add = [&](const char* name, const RoutedSet& a, const RoutedSet& b) {
    all.push_back({name, rows, {a, b}});
  };
  add("first set only", {rows_between(0, rows)}, {none});
  add("second set only, the first an empty list", {none, true}, {rows_between(0, rows)});
  add("no rows", {none}, {none, true});
  add("one listed row", {shuffled.narrow(0, 0, 1), true}, {none});
  add("all listed, shuffled", {none}, {shuffled, true});
  if (rows < 3) return all;
  const std::int64_t split = rows - 2, third = rows / 3;
  add("two ranges", {rows_between(0, split)}, {rows_between(split, rows)});
  add("two ranges, the second first", {rows_between(2, rows)}, {rows_between(0, 2)});
  add("ranges with rows around them", {rows_between(1, 1 + third)},
      {rows_between(rows - third, rows)});
  add("two lists, interleaved", {shuffled.narrow(0, 0, split), true},
      {shuffled.narrow(0, split, 1), true});
  add("a list of every second row and a range", {at::arange(0, third, 2, at::kLong), true},
      {rows_between(third, rows - 1)});
  return all;
}

}  // namespace diptych::testing
