#include "lib/verify/trace_compare.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include <fmt/ranges.h>

#include "lib/base/error.h"
#include "lib/tensor/safetensors.h"

namespace diptych {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

TensorKind kind_of(const Tensor& tensor) {
  if (tensor.is_floating_point()) return TensorKind::floating;
  return tensor.scalar_type() == at::kByte ? TensorKind::bytes : TensorKind::whole;
}

std::string shape_text(at::IntArrayRef shape) {
  return fmt::format("[{}]", fmt::join(shape, ","));
}

// The number that the tolerance is for.
double judged(const TensorComparison& tensor) {
  return tensor.by_norm ? tensor.difference.relative_norm : tensor.difference.max_abs;
}

TensorComparison compare_one(std::string_view name, const Tensor* actual, const Tensor& expected,
                             const Tolerances& tolerances) {
  TensorComparison result;
  result.name = name;
  result.dtype = at::toString(expected.scalar_type());
  result.shape = expected.sizes().vec();
  const TensorKind kind = kind_of(expected);
  const auto norm_limit = tolerances.relative_norm_for(name);
  result.by_norm = kind != TensorKind::whole && norm_limit.has_value();
  result.tolerance = result.by_norm ? *norm_limit : tolerances.for_tensor(name, kind);
  if (actual == nullptr) {
    result.problem = "missing";
    return result;
  }
  if (actual->sizes() != expected.sizes()) {
    result.problem = fmt::format("shape {}, expected {}", shape_text(actual->sizes()),
                                 shape_text(expected.sizes()));
    return result;
  }
  if (kind_of(*actual) != kind) {
    result.problem =
        fmt::format("{}, expected {}", at::toString(actual->scalar_type()), result.dtype);
    return result;
  }
  result.difference = difference(*actual, expected);
  result.pass = judged(result) <= result.tolerance;  // false for NaN
  if (kind == TensorKind::bytes && !result.by_norm && tolerances.image_mean_abs()) {
    result.pass = result.pass && result.difference.mean_abs <= *tolerances.image_mean_abs();
  }
  return result;
}

// How far beyond its tolerance: larger is worse.
std::pair<double, double> badness(const TensorComparison& tensor) {
  const double found = judged(tensor);
  if (!tensor.problem.empty() || std::isnan(found)) return {kInfinity, kInfinity};
  if (tensor.tolerance > 0) return {found / tensor.tolerance, found};
  return {found > 0 ? kInfinity : 0, found};
}

}  // namespace

NamedTensors read_trace(const std::filesystem::path& path) {
  const auto file = SafetensorsFile::open(path);
  NamedTensors tensors;
  for (const auto& [name, entry] : file.entries()) tensors.emplace(name, file.view(name));
  return tensors;
}

bool TraceComparison::pass() const {
  return first_divergence() == nullptr;
}

std::size_t TraceComparison::failures() const {
  return static_cast<std::size_t>(
      std::ranges::count_if(tensors, [](const auto& tensor) { return !tensor.pass; }));
}

const TensorComparison* TraceComparison::first_divergence() const {
  const auto found = std::ranges::find(tensors, false, &TensorComparison::pass);
  return found == tensors.end() ? nullptr : &*found;
}

const TensorComparison* TraceComparison::worst() const {
  const auto found = std::ranges::max_element(tensors, {}, badness);
  return found == tensors.end() ? nullptr : &*found;
}

double TraceComparison::smallest_cosine() const {
  double smallest = 1;
  for (const auto& tensor : tensors) {
    if (!tensor.problem.empty()) continue;
    const double found = tensor.difference.cosine;
    if (std::isnan(found)) return found;
    smallest = std::min(smallest, found);
  }
  return smallest;
}

TraceComparison compare_traces(const NamedTensors& actual, const NamedTensors& expected,
                               const Tolerances& tolerances, const TraceNames& names) {
  TraceComparison result;
  for (const auto& [name, tensor] : expected) {
    const auto found = actual.find(name);
    const Tensor* ours = found == actual.end() ? nullptr : &found->second;
    result.tensors.push_back(compare_one(name, ours, tensor, tolerances));
  }
  for (const auto& [name, tensor] : actual) {
    if (!expected.contains(name)) result.unexpected.push_back(name);
  }
  const auto before = [&](const std::string& a, const std::string& b) {
    return computed_before(a, b, names);
  };
  std::ranges::sort(result.tensors, before, &TensorComparison::name);
  std::ranges::sort(result.unexpected, before);
  return result;
}

std::string describe(const TensorComparison& tensor) {
  if (!tensor.problem.empty()) return fmt::format("{}: {}", tensor.name, tensor.problem);
  const Difference& d = tensor.difference;
  return fmt::format(
      "{}: max abs {:.3g}, mean abs {:.3g}, relative {:.3g}, cosine {:.9g}, tolerance {:g}{}",
      tensor.name, d.max_abs, d.mean_abs, d.relative, d.cosine, tensor.tolerance,
      tensor.by_norm ? fmt::format(" for the relative norm {:.3g}", d.relative_norm) : "");
}

}  // namespace diptych
