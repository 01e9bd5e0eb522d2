// Routed rows as the ops take them.
#pragma once

#include "lib/ops/ops.h"
#include "tests/kernels/routings.h"

namespace diptych::testing {

inline RowSet row_set(const RoutedSet& set, at::Device device) {
  return set.list ? RowSet::list(set.rows.to(device))
                  : RowSet::range(set.first(), set.rows.numel());
}

}  // namespace diptych::testing
