// Two sets of named tensors side by side: a trace of ours, a recording of a reference.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "lib/tensor/types.h"
#include "lib/verify/metrics.h"
#include "lib/verify/trace_names.h"

namespace diptych {

using NamedTensors = std::map<std::string, Tensor, std::less<>>;

// The tensors of a safetensors file as views of the mapped file. Throws InputError as
// SafetensorsFile::open.
NamedTensors read_trace(const std::filesystem::path& path);

enum class TensorKind { floating, whole, bytes };  // bytes: 8-bit levels of pictures

// A limit of difference.relative_norm for the tensors whose names match the glob.
struct NormTolerance {
  std::string glob;
  double limit;
};

// The largest absolute difference allowed for each tensor. Whole numbers must always agree exactly.
class Tolerances {
 public:
  // `value` for every floating tensor; pictures of 8-bit levels within max(1, value), or exact
  // where `value` is 0 (their levels are truncated, so any difference may flip one).
  static Tolerances uniform(double value);
  // `tolerance` of a golden case.json. Its groups are `suggested` (numbers), `groups` (objects with
  // `allowed`) or, where it has neither, its members (numbers, "exact", or "2 ulp of F32": a
  // relative norm of two units in the last place of a float32; other texts and objects are
  // remarks). A tensor takes the longest group that matches its name as a glob, else the group
  // that `names` lists, else `suggested_overall`, else `float_max_abs`, else the largest group.
  // Pictures that no group matches take `image_uint8_max_abs`, else `uint8_max_abs`, and
  // `image_uint8_mean_abs`; with a mean but no maximum they may differ by what the group
  // `vae.decoded` makes of their levels, or by anything where there is none. Without a `tolerance`,
  // or where it is "exact", everything is exact. Throws InputError that names the key for anything
  // that is no number of at least 0.
  static Tolerances from_case(const nlohmann::json& case_json, const TraceNames& names);

  // Takes the place of what a name that matches the glob would have; the last match counts.
  void set(std::string glob, double value);
  // Judges names that match the glob by difference.relative_norm instead of max_abs: rounding noise
  // of a coarser dtype grows with the values and, in its maximum, with their number. The last match
  // counts; whole numbers stay exact.
  void set_relative_norm(NormTolerance tolerance);
  double for_tensor(std::string_view name, TensorKind kind) const;
  std::optional<double> relative_norm_for(std::string_view name) const;
  std::optional<double> image_mean_abs() const { return image_mean_abs_; }

 private:
  using Groups = std::map<std::string, double, std::less<>>;

  std::optional<double> matching_group(std::string_view name) const;
  std::optional<double> listed_group(std::string_view name, const Groups& groups) const;

  TraceNames names_;
  Groups groups_, norm_groups_;  // of max_abs; of relative_norm
  std::vector<std::pair<std::string, double>> globs_;
  std::vector<NormTolerance> norms_;
  double fallback_ = 0, image_max_abs_ = 0;
  std::optional<double> image_mean_abs_;
};

struct TensorComparison {
  std::string name;
  std::string problem;  // missing, other shape or other kind of number; empty: it was compared
  std::string dtype;    // of the expected tensor
  std::vector<std::int64_t> shape;
  Difference difference;
  double tolerance = 0;
  bool by_norm = false;  // the tolerance is one of difference.relative_norm, not of max_abs
  bool pass = false;     // never for NaN, on either side
};

struct TraceComparison {
  std::vector<TensorComparison> tensors;  // every expected one, in order of computation
  std::vector<std::string> unexpected;    // only in the actual trace; no failure
  bool pass() const;
  std::size_t failures() const;
  const TensorComparison* first_divergence() const;  // the first that does not pass; may be null
  // The one furthest beyond its tolerance, or, where all is exact, the largest difference; those
  // that could not be compared come before all others. Null where nothing was expected.
  const TensorComparison* worst() const;
  double smallest_cosine() const;  // over the floating tensors compared; 1 where there is none
};

// Shapes must agree; so must the kind of number (floating point, whole, 8-bit), not its width.
// `names` gives the order of computation.
TraceComparison compare_traces(const NamedTensors& actual, const NamedTensors& expected,
                               const Tolerances& tolerances, const TraceNames& names);
std::string describe(const TensorComparison& tensor);  // one line: name, numbers or problem
nlohmann::json to_json(const TraceComparison& comparison);

}  // namespace diptych
