// Rows inside a field of canaries.
#pragma once

#include "tests/kernels/closeness.h"

namespace diptych::testing {

inline constexpr double kCanary = -77.0;
inline constexpr std::int64_t kMargin = 8;  // canary rows above and below

struct Field {
  Tensor base, rows;
};

inline Field make_field(std::int64_t rows, std::int64_t width, Layout layout,
                        const at::TensorOptions& options, double canary = kCanary) {
  Field field;
  field.base = at::full({rows + 2 * kMargin, width + gap(layout)}, canary, options);
  field.rows = field.base.narrow(0, kMargin, rows).narrow(1, before(layout), width);
  return field;
}

// Whether everything but the listed rows is as it was; those are overwritten.
inline bool is_untouched_around(const Field& field, const Tensor& rows, double canary = kCanary) {
  Tensor inside = field.rows;
  inside.index_fill_(0, rows.to(inside.device()), canary);
  return count(field.base != canary) == 0;
}

}  // namespace diptych::testing
