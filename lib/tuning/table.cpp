#include "lib/tuning/table.h"

#include <algorithm>
#include <cmath>
#include <set>

#include <fmt/ranges.h>

#include "lib/base/error.h"
#include "lib/base/sha256.h"

namespace diptych {
namespace {

bool overlap(const TunedClass& a, const TunedClass& b) {
  return a.kernel == b.kernel && a.shape == b.shape && a.first_rows <= b.last_rows &&
         b.first_rows <= a.last_rows;
}

// "linear_fp8 [4608, 3584, 0] 2-3: 1"
std::string text_of(const TunedClass& tuned) {
  return fmt::format("{} {} {}-{}: {}\n", info_of(tuned.kernel).name, tuned.shape, tuned.first_rows,
                     tuned.last_rows, tuned.choice);
}

int fastest(const TunedTimes& times, int usual) {
  constexpr double kWorthIt = 0.97;
  const auto& ms = times.milliseconds;
  const auto at = [&](int choice) { return ms[static_cast<std::size_t>(choice)]; };
  int best = -1;
  for (int choice = 0; choice < static_cast<int>(ms.size()); ++choice) {
    if (at(choice) && (best < 0 || *at(choice) < *at(best))) best = choice;
  }
  if (best >= 0 && at(usual) && *at(best) > kWorthIt * *at(usual)) return usual;
  return best;
}

// Where the lower of two neighbouring classes ends and the higher one begins.
void set_limit(TunedClass& low, TunedClass& high) {
  const std::int64_t most = high.first_rows - 1;  // it was measured as the higher one's
  const auto possible = [](const TunedClass& tuned, std::int64_t rows) {
    return !impossible_choice(tuned.kernel, tuned.shape, rows, tuned.choice);
  };
  const double middle =
      std::sqrt(static_cast<double>(low.last_rows) * static_cast<double>(high.first_rows));
  std::int64_t limit = std::clamp(static_cast<std::int64_t>(middle), low.last_rows, most);
  while (limit > low.last_rows && !possible(low, limit)) --limit;
  while (limit < most && !possible(high, limit + 1)) ++limit;
  if (possible(low, limit)) low.last_rows = limit;
  high.first_rows = limit + 1;
}

std::optional<int> find(const TuningTable* tuning, TunedKernel kernel, std::int64_t rows,
                        std::int64_t first_width, std::int64_t second_width = 0) {
  return tuning == nullptr ? std::nullopt
                           : tuning->find(kernel, {first_width, second_width, 0}, rows);
}

}  // namespace

void TuningTable::add(TunedClass tuned) {
  const TunedKernelInfo& info = info_of(tuned.kernel);
  if (tuned.first_rows < info.least_rows || tuned.last_rows < tuned.first_rows) {
    throw InputError("rows: found [{}, {}], expected the first and the last, from {} on",
                     tuned.first_rows, tuned.last_rows, info.least_rows);
  }
  for (const std::int64_t rows : {tuned.first_rows, tuned.last_rows}) {
    if (const auto reason = impossible_choice(tuned.kernel, tuned.shape, rows, tuned.choice)) {
      throw InputError("choice: found {} for rows {} to {}, but {}",
                       info.choices[static_cast<std::size_t>(tuned.choice)], tuned.first_rows,
                       tuned.last_rows, *reason);
    }
  }
  for (const TunedClass& other : classes_) {
    if (!overlap(tuned, other)) continue;
    throw InputError("rows: [{}, {}] overlaps [{}, {}] of the same kernel and shape",
                     tuned.first_rows, tuned.last_rows, other.first_rows, other.last_rows);
  }
  classes_.push_back(std::move(tuned));
}

std::optional<int> TuningTable::find(TunedKernel kernel, const TunedShape& shape,
                                     std::int64_t rows) const {
  for (const TunedClass& tuned : classes_) {
    if (tuned.kernel == kernel && tuned.first_rows <= rows && rows <= tuned.last_rows &&
        tuned.shape == shape) {
      return tuned.choice;
    }
  }
  return std::nullopt;
}

std::string TuningTable::hash() const {
  std::set<std::string> lines;
  for (const TunedClass& tuned : classes_) lines.insert(text_of(tuned));
  Sha256 sha;
  for (const std::string& line : lines) sha.update(line);
  return sha.finish_hex().substr(0, 16);
}

Fp8Product choose_fp8_product(const TuningTable* tuning, std::int64_t rows, std::int64_t outputs,
                              std::int64_t inputs) {
  const auto tuned = find(tuning, TunedKernel::linear_fp8, rows, outputs, inputs);
  return tuned ? static_cast<Fp8Product>(*tuned) : usual_fp8_product(rows, outputs, inputs);
}

Int8Product choose_int8_product(const TuningTable* tuning, std::int64_t rows, std::int64_t outputs,
                                std::int64_t inputs) {
  const auto tuned = find(tuning, TunedKernel::linear_int8, rows, outputs, inputs);
  return tuned ? static_cast<Int8Product>(*tuned) : usual_int8_product(rows, outputs, inputs);
}

GatedProduct choose_gated_product(const TuningTable* tuning, std::int64_t rows, std::int64_t inner,
                                  std::int64_t inputs) {
  const auto tuned = find(tuning, TunedKernel::gated_linear, rows, inner, inputs);
  return tuned ? static_cast<GatedProduct>(*tuned) : usual_gated_product(rows);
}

SiluVectors choose_silu_vectors(const TuningTable* tuning, std::int64_t rows, std::int64_t inner) {
  const auto tuned = find(tuning, TunedKernel::silu_mul_e4m3, rows, inner);
  return tuned ? static_cast<SiluVectors>(*tuned) : kUsualSiluVectors;
}

QuantizeVectors choose_quantize_vectors(const TuningTable* tuning, std::int64_t rows,
                                        std::int64_t width) {
  const auto tuned = find(tuning, TunedKernel::quantize_rows, rows, width);
  return tuned ? static_cast<QuantizeVectors>(*tuned) : usual_quantize_vectors(rows);
}

std::vector<TunedClass> make_classes(TunedKernel kernel, const TunedShape& shape,
                                     std::span<const TunedTimes> measured,
                                     int (*usual)(const TunedShape& shape, std::int64_t rows)) {
  std::vector<TunedClass> classes;
  for (const TunedTimes& times : measured) {
    const int choice = fastest(times, usual(shape, times.rows));
    if (choice < 0) continue;
    const auto reaches = [&](const TunedClass& last) {
      return last.choice == choice && !impossible_choice(kernel, shape, times.rows, choice);
    };
    if (!classes.empty() && reaches(classes.back())) {
      classes.back().last_rows = times.rows;
      classes.back().measured.push_back(times);
    } else {
      classes.push_back({kernel, shape, times.rows, times.rows, choice, {times}});
    }
  }
  for (std::size_t i = 1; i < classes.size(); ++i) set_limit(classes[i - 1], classes[i]);
  return classes;
}

}  // namespace diptych
