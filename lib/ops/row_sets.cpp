#include "lib/ops/row_sets.h"

#include <array>

#include "kernels/row_sets.h"
#include "lib/ops/checks.h"

namespace diptych {

RowSet RowSet::range(std::int64_t first, std::int64_t count) {
  return {{}, first, count};
}

RowSet RowSet::list(Tensor index) {
  const std::int64_t count = index.numel();
  return {std::move(index), 0, count};
}

namespace ops {

void check_row_sets(const char* op, std::span<const RowSet> sets, const Tensor& x) {
  std::array<kernels::RowSet, kernels::kRowSets> seen;
  TORCH_CHECK(!sets.empty() && sets.size() <= seen.size(), "[", op, "] ", sets.size(),
              " sets of rows, expected 1 or 2");
  for (std::size_t i = 0; i < sets.size(); ++i) {
    if (sets[i].index.defined()) {
      check_table(op, "a list of rows", sets[i].index, at::kLong, {sets[i].count}, x);
    }
    seen[i] = kernel_rows(sets[i]);
  }
  const char* reason = kernels::row_sets_unsupported(seen[0], seen[1], x.size(0));
  TORCH_CHECK(reason == nullptr, "[", op, "] ", reason);
}

kernels::RowSet kernel_rows(const RowSet& set) {
  const std::int64_t* index =
      set.index.defined() ? set.index.const_data_ptr<std::int64_t>() : nullptr;
  return {index, set.first, set.count};
}

bool is_all_of(const RowSet& set, const Tensor& t) {
  return !set.index.defined() && set.count == t.size(0);
}

Tensor take_rows(const Tensor& t, const RowSet& set) {
  return set.index.defined() ? t.index_select(0, set.index) : t.narrow(0, set.first, set.count);
}

void put_rows(const Tensor& t, const RowSet& set, const Tensor& rows) {
  if (set.index.defined()) {
    Tensor into = t;
    into.index_copy_(0, set.index, rows);
  } else {
    t.narrow(0, set.first, set.count).copy_(rows);
  }
}

}  // namespace ops
}  // namespace diptych
