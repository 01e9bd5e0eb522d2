// What was measured of the choices, on one device: for each kernel and shape, ranges of rows with
// the choice that was fastest there. file.h reads and writes it.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "lib/tuning/choices.h"

namespace diptych {

struct TunedTimes {  // the evidence at one number of rows
  std::int64_t rows = 0;
  std::vector<std::optional<double>> milliseconds;  // of a call, by choice; absent: not measured
};

struct TunedClass {
  TunedKernel kernel = TunedKernel::linear_fp8;
  TunedShape shape{};
  std::int64_t first_rows = 0, last_rows = 0;  // both are in it
  int choice = 0;                              // of the kernel's enum
  std::vector<TunedTimes> measured;            // by rows
};

class TuningTable {
 public:
  // Throws InputError "...: what is wrong" for a class that overlaps another of its kernel and
  // shape, rows that leave no choice or are out of order, and an impossible choice.
  void add(TunedClass tuned);
  // Of a call with so many rows, or nothing: then the code's default holds.
  std::optional<int> find(TunedKernel kernel, const TunedShape& shape, std::int64_t rows) const;
  std::span<const TunedClass> classes() const { return classes_; }
  // First 16 hex digits of the sha-256 of all choices. Times do not enter, nor does the order.
  std::string hash() const;

 private:
  std::vector<TunedClass> classes_;
};

// What bfloat16 rows take: as it was measured, else the usual. `tuning`: or null.
Fp8Product choose_fp8_product(const TuningTable* tuning, std::int64_t rows, std::int64_t outputs,
                              std::int64_t inputs);
Int8Product choose_int8_product(const TuningTable* tuning, std::int64_t rows, std::int64_t outputs,
                                std::int64_t inputs);
GatedProduct choose_gated_product(const TuningTable* tuning, std::int64_t rows, std::int64_t inner,
                                  std::int64_t inputs);
SiluVectors choose_silu_vectors(const TuningTable* tuning, std::int64_t rows, std::int64_t inner);
QuantizeVectors choose_quantize_vectors(const TuningTable* tuning, std::int64_t rows,
                                        std::int64_t width);

// The classes of one kernel and shape from what was measured, by rows ascending. A choice other
// than `usual`, where that was measured, must be faster by 3 %, about what repeated measurements
// differ by. Neighbours of one choice are one class; between two choices the limit is halfway in
// ratio, or where the possible one changes; rows beyond the measured ones are in no class.
std::vector<TunedClass> make_classes(TunedKernel kernel, const TunedShape& shape,
                                     std::span<const TunedTimes> measured,
                                     int (*usual)(const TunedShape& shape, std::int64_t rows));

}  // namespace diptych
