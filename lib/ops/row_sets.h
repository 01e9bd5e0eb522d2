// Row sets on tensors: what the ops that route share.
#pragma once

#include "kernels/types.h"
#include "lib/ops/ops.h"

namespace diptych::ops {

// Throws c10::Error unless the sets are one or two, ranges are within `rows` rows of x and do not
// overlap, and lists are int64 on x's device. What a list holds is not looked at.
void check_row_sets(const char* op, std::span<const RowSet> sets, const Tensor& x);

kernels::RowSet kernel_rows(const RowSet& set);

bool is_all_of(const RowSet& set, const Tensor& t);  // the range of all rows
// The set's rows of t: a view of a range, a copy of listed ones.
Tensor take_rows(const Tensor& t, const RowSet& set);
void put_rows(const Tensor& t, const RowSet& set, const Tensor& rows);

}  // namespace diptych::ops
