#include "lib/verify/json.h"

#include <cmath>

#include <nlohmann/json.hpp>

#include "lib/verify/trace_compare.h"

namespace diptych {
namespace {

nlohmann::json finite_or_null(double value) {
  return std::isfinite(value) ? nlohmann::json(value) : nlohmann::json();
}

}  // namespace

nlohmann::json to_json(const ImageMetrics& metrics) {
  return {{"ssim", metrics.ssim ? finite_or_null(*metrics.ssim) : nlohmann::json()},
          {"psnr", finite_or_null(metrics.psnr)},
          {"max_abs", finite_or_null(metrics.difference.max_abs)},
          {"mean_abs", finite_or_null(metrics.difference.mean_abs)},
          {"cosine", finite_or_null(metrics.difference.cosine)}};
}

nlohmann::json to_json(const GateResult& gate) {
  return {{"name", gate.name},
          {"found", finite_or_null(gate.found)},
          {gate.at_least ? "at_least" : "at_most", finite_or_null(gate.limit)},
          {"pass", gate.pass}};
}

nlohmann::json to_json(const ProbeResult& result) {
  return {{"x", result.probe.x},
          {"y", result.probe.y},
          {"expected", result.probe.rgb},
          {"found", result.found},
          {"tolerance", result.probe.tolerance},
          {"difference", result.difference},
          {"pass", result.pass}};
}

nlohmann::json to_json(const TraceComparison& comparison) {
  nlohmann::json list = nlohmann::json::array();
  for (const auto& tensor : comparison.tensors) {
    nlohmann::json entry = {{"name", tensor.name},
                            {"dtype", tensor.dtype},
                            {"shape", tensor.shape},
                            {"tolerance", tensor.tolerance},
                            {"pass", tensor.pass}};
    if (tensor.problem.empty()) {
      entry["max_abs"] = finite_or_null(tensor.difference.max_abs);
      entry["mean_abs"] = finite_or_null(tensor.difference.mean_abs);
      entry["relative_norm"] = finite_or_null(tensor.difference.relative_norm);
      entry["relative"] = finite_or_null(tensor.difference.relative);
      entry["cosine"] = finite_or_null(tensor.difference.cosine);
    } else {
      entry["problem"] = tensor.problem;
    }
    list.push_back(std::move(entry));
  }
  const auto name_or_null = [](const TensorComparison* tensor) {
    return tensor == nullptr ? nlohmann::json() : nlohmann::json(tensor->name);
  };
  return {{"pass", comparison.pass()},
          {"first_divergence", name_or_null(comparison.first_divergence())},
          {"worst", name_or_null(comparison.worst())},
          {"tensors", std::move(list)},
          {"unexpected", comparison.unexpected}};
}

}  // namespace diptych
