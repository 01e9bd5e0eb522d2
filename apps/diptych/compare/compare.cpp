// `diptych compare`: two pictures, clips, traces or folders of them side by side.
#include <algorithm>
#include <charconv>
#include <cmath>
#include <memory>
#include <set>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "apps/diptych/compare/media.h"
#include "apps/diptych/verbs.h"
#include "lib/base/clip_formats.h"
#include "lib/base/error.h"
#include "lib/base/folder.h"
#include "lib/base/interrupt.h"
#include "lib/base/json_file.h"
#include "lib/base/messages.h"
#include "lib/base/stdin.h"
#include "lib/config/words.h"
#include "lib/media/file_bytes.h"
#include "lib/media/image_read.h"
#include "lib/media/video/clip_read.h"
#include "lib/media/video/clip_start.h"
#include "lib/pipelines/registry.h"
#include "lib/request/output_names.h"
#include "lib/tensor/trace.h"
#include "lib/verify/gates.h"
#include "lib/verify/json.h"
#include "lib/verify/trace_compare.h"

namespace diptych {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

enum class Kind { picture, clip, trace, folder };

Kind kind_of(const fs::path& path) {
  if (!fs::exists(path)) throw InputError("{}: {}", path.string(), why_missing(path, "not found"));
  if (path.extension() == ".safetensors" && !fs::is_directory(path)) return Kind::trace;
  if (is_clip(path)) return Kind::clip;
  if (fs::is_directory(path)) return Kind::folder;
  if (format_of_name(path) || picture_format(read_file_bytes(path))) return Kind::picture;
  throw InputError("{}: expected a picture ({}), a clip, a .safetensors or a folder", path.string(),
                   readable_pictures());
}

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
        throw InputError(Setting::of("tolerance", in_quotes(text)),
                         "with --case only GLOB=NUMBER is possible");
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
  return report;
}

CompareReport compare_files(const fs::path& actual, const fs::path& expected, Kind kind,
                            const CompareOptions& options) {
  check_interrupted();
  switch (kind) {
    case Kind::trace:
      return compare_trace_files(actual, expected, options);
    case Kind::clip:
      return compare_clips(actual, expected, options);
    default:
      return compare_pictures(actual, expected, options);
  }
}

void print_lines(const std::string& name, const CompareReport& report) {
  fmt::print("{}: {}\n", printable(name), printable(report.lines.front()));
  for (std::size_t i = 1; i < report.lines.size(); ++i) {
    fmt::print("  {}\n", printable(report.lines[i]));
  }
}

// A gate for what none of the files holds would pass unseen.
void require_use_of_gates(const CompareOptions& options, const CompareReport& report) {
  if (report.pass && options.picture_gate() && report.pictures == 0)
    throw InputError(
        "compare: --min-ssim, --min-ms-ssim, --min-psnr and --max-abs: no pictures were compared");
  if (report.pass && options.trace_gate() && report.traces == 0)
    throw InputError("compare: --tolerance and --case: no traces were compared");
  for (const std::string& text : options.tolerances) {
    const auto equals = text.rfind('=');
    if (equals == std::string::npos) continue;
    const std::string glob = text.substr(0, equals);
    const auto matches = [&](const std::string& name) { return glob_matches(glob, name); };
    if (std::ranges::none_of(report.tensors, matches))
      throw InputError(Setting::of("tolerance"), "{}: {} matches no tensor of {}", in_quotes(text),
                       in_quotes(glob), options.expected.string());
  }
}

std::set<std::string> comparable_names(const fs::path& folder) {
  std::set<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder)) {
    const bool known = format_of_name(entry.path()) || named_as_video(entry.path()) ||
                       entry.path().extension() == ".safetensors";
    if (known && entry.is_regular_file()) names.insert(entry.path().filename().string());
  }
  return names;
}

CompareReport compare_folders(const CompareOptions& options) {
  const auto ours = comparable_names(options.actual), theirs = comparable_names(options.expected);
  std::set<std::string> names = ours;
  names.insert(theirs.begin(), theirs.end());
  CompareReport total;
  Json pairs = Json::array();
  std::size_t compared = 0, missing = 0, incomparable = 0, failed = 0;
  for (const std::string& name : names) {
    CompareReport report;
    if (!ours.contains(name) || !theirs.contains(name)) {
      const fs::path& without = ours.contains(name) ? options.expected : options.actual;
      report = problem(fmt::format("missing in {}", without.string()), !options.any_gate());
      ++missing;
    } else {
      try {
        report = compare_files(options.actual / name, options.expected / name,
                               kind_of(options.expected / name), options);
        ++compared;
        total.pictures += report.pictures;
        total.traces += report.traces;
        total.tensors.insert(total.tensors.end(), report.tensors.begin(), report.tensors.end());
      } catch (const InputError& error) {  // the others are compared all the same
        report = problem(error.what(), false);
        ++incomparable;
      }
    }
    failed += report.pass ? 0 : 1;
    report.json["name"] = name;
    report.json["pass"] = report.pass;
    if (!options.json) print_lines(name, report);
    pairs.push_back(std::move(report.json));
  }
  if (compared + incomparable == 0) {
    throw InputError("{} and {}: no picture, clip or .safetensors of the same name",
                     options.actual.string(), options.expected.string());
  }
  total.pass = failed == 0;
  total.json["pairs"] = std::move(pairs);
  std::string summary = fmt::format("{} compared, {} missing", compared, missing);
  if (incomparable > 0) {
    summary += fmt::format(", {} not comparable", incomparable);
    total.incomplete = fmt::format("{} could not be compared", counted(incomparable, "pair"));
  }
  if (options.any_gate()) summary += fmt::format(", {} failed", failed);
  total.lines.push_back(summary);
  return total;
}

// Files that are written must not be read, and have a name that says how.
void require_output(const CompareOptions& options, const fs::path& path, const Setting& setting,
                    const Extensions& extensions) {
  if (path.empty()) return;
  require_extension(path, extensions, setting);
  for (const fs::path* input : {&options.actual, &options.expected}) {
    std::error_code none;
    if (fs::equivalent(*input, path, none))
      throw InputError(setting, "{}: is one of the two that are compared", path.string());
  }
  require_writable(path, setting);
}

// A flag that this kind of input cannot serve is an error, never ignored.
void require_flags_that_fit(const CompareOptions& options, Kind kind) {
  const bool writes = !options.difference.empty() || !options.output.empty();
  if (kind == Kind::trace && (options.picture_gate() || writes)) {
    throw InputError(
        "compare: --min-ssim, --min-ms-ssim, --min-psnr, --max-abs, --diff and --output are for "
        "pictures and clips, not traces");
  }
  if ((kind == Kind::picture || kind == Kind::clip) && options.trace_gate()) {
    throw InputError("compare: --tolerance and --case are for traces, not {}",
                     kind == Kind::clip ? "clips" : "pictures");
  }
  if (kind == Kind::folder && writes)
    throw InputError("compare: --diff and --output need two files, not folders");
  if (kind == Kind::clip && !options.difference.empty())
    throw InputError("compare: --diff needs two pictures; --output shows how clips differ");
  require_output(options, options.difference, Setting::of("diff"), written_extensions());
  Extensions extensions = written_extensions();
  if (kind == Kind::clip) {
    const std::vector<std::string_view> clips = written_clip_extensions();
    extensions.insert(extensions.end(), clips.begin(), clips.end());
  }
  require_output(options, options.output, Setting::of("output"), extensions);
}

// A folder beside a clip holds the frames of one.
Kind common_kind(const CompareOptions& options) {
  const Kind actual = kind_of(options.actual), expected = kind_of(options.expected);
  if (actual == expected) return actual;
  const auto either = [&](Kind one, Kind other) { return actual == one && expected == other; };
  if (either(Kind::clip, Kind::folder) || either(Kind::folder, Kind::clip)) return Kind::clip;
  throw InputError("{} and {}: expected two pictures, two clips, two traces or two folders",
                   options.actual.string(), options.expected.string());
}

int run_compare(CompareOptions options) {
  if (options.actual == kStdin && options.expected == kStdin)
    throw InputError("compare: - given twice; stdin is read once");
  options.actual = file_or_stdin(options.actual);
  options.expected = file_or_stdin(options.expected);
  const Kind kind = common_kind(options);
  require_possible(options.gates);
  require_flags_that_fit(options, kind);
  CompareReport report = kind == Kind::folder
                             ? compare_folders(options)
                             : compare_files(options.actual, options.expected, kind, options);
  if (report.incomplete.empty()) require_use_of_gates(options, report);
  if (options.json) {
    report.json["actual"] = options.actual.string();
    report.json["expected"] = options.expected.string();
    report.json["pass"] = report.pass;
    fmt::print("{}\n", report.json.dump(2, ' ', false, Json::error_handler_t::replace));
  } else {
    print_lines(fmt::format("{} {}", options.actual.string(), options.expected.string()), report);
  }
  if (!report.incomplete.empty()) throw InputError("compare: {}", report.incomplete);
  return report.pass ? 0 : 1;
}

void add_flags(CLI::App& verb, CompareOptions& options) {
  verb.add_option(
          "actual", options.actual,
          "what to judge: a picture, a clip, a .safetensors or a folder; - for a picture or "
          "clip on stdin")
      ->required()
      ->check(path_problem);
  verb.add_option("expected", options.expected, "what to compare it with: the same kind")
      ->required()
      ->check(path_problem);
  verb.add_option("--min-ssim", options.gates.min_ssim, "gate: smallest SSIM (1: equal)")
      ->envname("DIPTYCH_MIN_SSIM");
  verb.add_option("--min-ms-ssim", options.gates.min_ms_ssim, "gate: smallest MS-SSIM (1: equal)")
      ->envname("DIPTYCH_MIN_MS_SSIM");
  verb.add_option("--min-psnr", options.gates.min_psnr, "gate: smallest PSNR, in dB")
      ->envname("DIPTYCH_MIN_PSNR");
  verb.add_option("--max-abs", options.gates.max_abs,
                  "gate: largest difference of any level, 0 to 255")
      ->envname("DIPTYCH_MAX_ABS");
  verb.add_option("--min-cosine", options.gates.min_cosine,
                  "gate: smallest cosine, of the pictures or of any tensor")
      ->envname("DIPTYCH_MIN_COSINE");
  verb.add_option(
          "--tolerance", options.tolerances,
          "gate for traces: largest absolute difference, T for all tensors or GLOB=T; may be "
          "repeated, several are separated by ;, the last match counts")
      ->allow_extra_args(false)
      ->delimiter(kListSeparator)
      ->envname("DIPTYCH_TOLERANCE");
  verb.add_option("--case", options.case_file, "gate for traces: the tolerances of a case.json")
      ->check(path_problem)
      ->envname("DIPTYCH_CASE");
  verb.add_option("--diff", options.difference,
                  fmt::format("write the difference of two pictures there, {} times amplified",
                              kDifferenceGain))
      ->check(path_problem)
      ->envname("DIPTYCH_DIFF");
  // The variable of this name is of generate.
  verb.add_option("-o,--output", options.output,
                  "write the two and their difference side by side: a picture, or of clips a clip "
                  "or, named as a picture, a sheet of eight frames")
      ->type_name("FILE")
      ->check(path_problem);
  verb.add_flag("--json", options.json, "every number as JSON on stdout")->envname("DIPTYCH_JSON");
}

}  // namespace

void add_compare(CLI::App& app, Run& run) {
  auto options = std::make_shared<CompareOptions>();
  CLI::App* verb =
      app.add_subcommand("compare", "two pictures, clips, traces or folders side by side");
  add_flags(*verb, *options);
  verb->footer(
      "Pictures: SSIM, MS-SSIM, PSNR, largest and mean difference of the levels. Clips: the same "
      "of\n"
      "every frame (--json), with mean and worst; a gate holds for every frame. A folder with\n"
      "frame_00000.png, or any with PNG files beside a clip, is a clip. Traces: how many\n"
      "tensors differ, the first of them in order of computation, and the worst. Folders: every\n"
      "picture, clip and .safetensors of the same name.\n"
      "Exit code 0: no gate failed; 1: a gate failed, or sizes or numbers of frames differ; 2: a\n"
      "file cannot be read, after all others were compared. A missing file or tensor and NaN fail\n"
      "every gate. Whole numbers in traces must always be equal.\n"
      "Examples:\n"
      "  diptych compare a.png b.png --diff difference.png\n"
      "  diptych compare a.mp4 b.mp4 --min-ssim 0.95 -o side_by_side.mp4\n"
      "  diptych compare out/ reference/ --min-ssim 0.98 --max-abs 12\n"
      "  diptych compare ours.safetensors expected.safetensors --tolerance 1e-4 --tolerance "
      "'*.hidden=1e-3'\n"
      "  diptych compare ours.safetensors expected.safetensors --case case.json --json");
  verb->callback([options, &run] { run = [options](Log&) { return run_compare(*options); }; });
}

}  // namespace diptych
