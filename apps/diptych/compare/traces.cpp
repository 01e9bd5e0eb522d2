#include <algorithm>
#include <charconv>
#include <cmath>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "apps/diptych/compare/files.h"
#include "lib/base/error.h"
#include "lib/base/json_file.h"
#include "lib/base/messages.h"
#include "lib/config/words.h"
#include "lib/pipelines/registry.h"
#include "lib/tensor/trace.h"
#include "lib/verify/json.h"
#include "lib/verify/trace_compare.h"

namespace diptych {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

double parse_tolerance(std::string_view number, const std::string& whole) {
  double value = -1;
  const char* end = number.data() + number.size();
  const auto [stop, error] = std::from_chars(number.data(), end, value);
  if (error != std::errc() || stop != end || !std::isfinite(value) || value < 0) {
    throw InputError(Setting::of("tolerance", in_quotes(whole)),
                     "expected a number of at least 0, or GLOB=NUMBER");
  }
  return value;
}

Tolerances case_tolerances(const fs::path& file, const TraceNames& names) {
  if (!fs::exists(file)) throw InputError(Setting::of("case"), "{}: not found", file.string());
  const Json description = read_json_object(file);
  if (!description.contains("task") && !description.contains("tolerance")) {
    throw InputError(Setting::of("case"),
                     "{}: has neither task nor tolerance; expected a case.json", file.string());
  }
  return Tolerances::from_case(description, names);
}

Tolerances make_tolerances(const CompareOptions& options, const TraceNames& names) {
  Tolerances tolerances = Tolerances::uniform(0);
  if (!options.case_file.empty()) {
    tolerances = case_tolerances(options.case_file, names);
  }
  for (const std::string& text : options.tolerances) {
    const auto equals = text.rfind('=');
    if (equals == std::string::npos) {
      if (!options.case_file.empty()) {
        throw InputError(
            Setting::of("tolerance", in_quotes(text)),
            SettingText{"with ", Setting::of("case"), " only GLOB=NUMBER is possible"});
      }
      tolerances = Tolerances::uniform(parse_tolerance(text, text));
    }
  }
  for (const std::string& text : options.tolerances) {
    const auto equals = text.rfind('=');
    if (equals == std::string::npos) continue;
    tolerances.set(text.substr(0, equals),
                   parse_tolerance(std::string_view(text).substr(equals + 1), text));
  }
  return tolerances;
}

}  // namespace

void require_tolerances(const CompareOptions& options) {
  make_tolerances(options, {});
}

CompareReport compare_trace_files(const fs::path& actual, const fs::path& expected,
                                  const CompareOptions& options) {
  const auto wanted = read_trace(expected);
  if (wanted.empty())
    throw InputError("{}: holds no tensor; expected some to compare with", expected.string());
  CompareReport report;
  report.traces = 1;
  for (const auto& [name, tensor] : wanted) report.tensors.push_back(name);
  const TraceNames names = trace_names_of(report.tensors);
  const auto comparison =
      compare_traces(read_trace(actual), wanted, make_tolerances(options, names), names);
  const double cosine = comparison.smallest_cosine();
  report.json = to_json(comparison);
  const auto is_equal = [](const auto& t) {
    return t.problem.empty() && t.difference.max_abs == 0;
  };
  report.json["equal"] =
      comparison.unexpected.empty() && std::ranges::all_of(comparison.tensors, is_equal);
  report.pass = !options.trace_gate() || comparison.pass();
  report.lines.push_back(
      fmt::format("{}, {} {}, smallest cosine {:.9g}", counted(comparison.tensors.size(), "tensor"),
                  comparison.failures(),
                  options.trace_gate() ? "outside their tolerance" : "not equal", cosine));
  if (const TensorComparison* first = comparison.first_divergence()) {
    report.lines.push_back("first divergence: " + describe(*first));
    report.lines.push_back("worst: " + describe(*comparison.worst()));
  }
  if (!comparison.unexpected.empty()) {
    report.lines.push_back(fmt::format("only in the first file: {}, {} first",
                                       counted(comparison.unexpected.size(), "tensor"),
                                       comparison.unexpected[0]));
  }
  if (const auto limit = options.gates.min_cosine; limit && !(cosine >= *limit)) {
    report.pass = false;
    report.lines.push_back(fmt::format("smallest cosine {:.9g} is below {:g}", cosine, *limit));
  }
  const auto lacks_cosine = [](const TensorComparison& t) { return !t.problem.empty(); };
  if (options.gates.min_cosine && std::ranges::any_of(comparison.tensors, lacks_cosine)) {
    report.pass = false;
    report.lines.push_back("smallest cosine: not every tensor could be compared");
  }
  return report;
}

}  // namespace diptych
