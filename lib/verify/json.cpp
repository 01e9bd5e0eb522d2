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
          {"ms_ssim", metrics.ms_ssim ? finite_or_null(*metrics.ms_ssim) : nlohmann::json()},
          {"psnr", finite_or_null(metrics.psnr)},
          {"max_abs", finite_or_null(metrics.difference.max_abs)},
          {"mean_abs", finite_or_null(metrics.difference.mean_abs)},
          {"cosine", finite_or_null(metrics.difference.cosine)}};
}

nlohmann::json to_json(const ClipMetrics& metrics) {
  const ClipExtremes all = extremes_of(metrics);
  nlohmann::json mean = nlohmann::json::object(), worst = mean, list = nlohmann::json::array();
  const auto add = [&](const char* name, const Extreme& extreme) {
    mean[name] = finite_or_null(extreme.mean);
    worst[name] = {{"value", finite_or_null(extreme.worst)}, {"frame", extreme.frame}};
  };
  if (all.ssim) add("ssim", *all.ssim);
  if (all.ms_ssim) add("ms_ssim", *all.ms_ssim);
  add("psnr", all.psnr);
  add("max_abs", all.max_abs);
  add("mean_abs", all.mean_abs);
  add("cosine", all.cosine);
  for (const ImageMetrics& frame : metrics.frames) list.push_back(to_json(frame));
  return {{"frames", metrics.frames.size()},
          {"mean", std::move(mean)},
          {"worst", std::move(worst)},
          {"per_frame", std::move(list)}};
}

nlohmann::json to_json(const GateResult& gate) {
  nlohmann::json json = {{"name", gate.name},
                         {"found", finite_or_null(gate.found)},
                         {gate.at_least ? "at_least" : "at_most", finite_or_null(gate.limit)},
                         {"pass", gate.pass}};
  if (gate.frame) json["frame"] = *gate.frame;
  return json;
}

nlohmann::json to_json(const ProbeResult& result) {
  nlohmann::json json = {{"x", result.probe.x},
                         {"y", result.probe.y},
                         {"expected", result.probe.rgb},
                         {"found", result.found},
                         {"tolerance", result.probe.tolerance},
                         {"difference", result.difference},
                         {"pass", result.pass}};
  if (result.frame) json["frame"] = *result.frame;
  return json;
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
