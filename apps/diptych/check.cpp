// `diptych check`: gates on a finished picture or clip.
#include <algorithm>
#include <memory>

#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "apps/diptych/verbs.h"
#include "lib/base/error.h"
#include "lib/base/messages.h"
#include "lib/base/stdin.h"
#include "lib/media/image_read.h"
#include "lib/media/video/clip_read.h"
#include "lib/verify/clip_metrics.h"
#include "lib/verify/gates.h"
#include "lib/verify/json.h"
#include "lib/verify/probes.h"

namespace diptych {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

struct CheckOptions {
  fs::path file, probe_file, against;
  fs::path reference;  // where `against` is read: it may be stdin
  std::vector<std::string> probes;
  std::optional<int> tolerance;
  ImageGates gates;
  bool json = false;
};

struct Outcome {
  std::vector<std::string> failures;  // a line each
  std::size_t checks = 0;
  Json json = Json::object();
};

std::vector<Probe> all_probes(const CheckOptions& options) {
  std::vector<Probe> probes;
  if (!options.probe_file.empty()) probes = load_probes(options.probe_file, options.tolerance);
  for (const std::string& text : options.probes) {
    probes.push_back(parse_probe(text, options.tolerance.value_or(kDefaultProbeTolerance)));
  }
  return probes;
}

void require_something_to_check(const CheckOptions& options) {
  const bool gates = options.gates.any();
  const bool probes = !options.probes.empty() || !options.probe_file.empty();
  require_possible(options.gates);
  if (gates && options.against.empty())
    throw InputError(Setting::of(options.gates.first()), "needs --against REF");
  if (!gates && !options.against.empty()) {
    throw InputError(Setting::of("against"),
                     "needs --min-ssim, --min-ms-ssim, --min-psnr, --max-abs or --min-cosine");
  }
  // Not CLI11's to check: from 2.4 on it passes over a variable that its checks refuse.
  if (options.tolerance && (*options.tolerance < 0 || *options.tolerance > 255)) {
    throw InputError(Setting::of("tolerance"), "found {}, expected 0 to 255", *options.tolerance);
  }
  if (options.tolerance && !probes) {
    throw InputError(Setting::of("tolerance"), "needs --probe or --probes");
  }
  if (!gates && !probes) {
    throw InputError("check: nothing to check; give --probe, --probes or --against");
  }
}

void add_probes(const std::vector<ProbeResult>& results, Outcome& outcome) {
  Json list = Json::array();
  for (const ProbeResult& result : results) {
    ++outcome.checks;
    if (!result.pass) outcome.failures.push_back(describe(result));
    list.push_back(to_json(result));
  }
  outcome.json["probes"] = std::move(list);
}

void add_gates(const std::vector<GateResult>& results, Outcome& outcome) {
  Json list = Json::array();
  for (const GateResult& gate : results) {
    ++outcome.checks;
    if (!gate.pass) outcome.failures.push_back(describe(gate));
    list.push_back(to_json(gate));
  }
  outcome.json["gates"] = std::move(list);
}

void add_failure(const std::string& text, Outcome& outcome) {
  ++outcome.checks;
  outcome.failures.push_back(text);
}

bool require_one_size(ImageSize found, ImageSize reference, const CheckOptions& options,
                      Outcome& outcome) {
  if (found.width == reference.width && found.height == reference.height) return true;
  add_failure(
      fmt::format("is {}x{}, but {} is {}x{}; expected the same size", found.width, found.height,
                  options.against.string(), reference.width, reference.height),
      outcome);
  return false;
}

ImageSize size_of(const Tensor& rgb) {
  return {rgb.size(0), rgb.size(1)};
}

ImageSize check_picture(const fs::path& path, const CheckOptions& options, Outcome& outcome) {
  const Tensor rgb = read_image(path);
  add_probes(evaluate_probes(all_probes(options), rgb), outcome);
  if (options.against.empty()) return size_of(rgb);
  const Tensor reference = read_image(options.reference);
  outcome.json["against"] = options.against.string();
  if (require_one_size(size_of(rgb), size_of(reference), options, outcome))
    add_gates(apply_gates(options.gates, image_metrics(rgb, reference)), outcome);
  return size_of(rgb);
}

// The reference of a clip, read in step with it.
class Reference {
 public:
  Reference(const CheckOptions& options, ImageSize size, Outcome& outcome)
      : options_(options), outcome_(outcome) {
    if (options.against.empty()) return;
    outcome.json["against"] = options.against.string();
    clip_.emplace(options.reference);
    if (!require_one_size(size, clip_->facts().size, options, outcome)) clip_.reset();
  }

  void see(const Tensor& rgb) {
    if (!clip_) return;
    if (const auto frame = clip_->next()) metrics_.frames.push_back(image_metrics(rgb, frame->rgb));
  }

  void finish(std::int64_t frames) {
    if (!clip_) return;
    while (clip_->skip()) {
    }
    if (clip_->position() != frames) {
      add_failure(fmt::format("has {}, but {} has {}; expected the same number",
                              counted(static_cast<std::size_t>(frames), "frame"),
                              options_.against.string(), clip_->position()),
                  outcome_);
      return;
    }
    add_gates(apply_gates(options_.gates, metrics_), outcome_);
    outcome_.json["metrics"] = to_json(metrics_);
  }

 private:
  const CheckOptions& options_;
  Outcome& outcome_;
  std::optional<ClipReader> clip_;
  ClipMetrics metrics_;
};

ImageSize check_clip(const fs::path& path, const CheckOptions& options, Outcome& outcome) {
  ClipReader clip(path);
  ClipProbes probes(all_probes(options));
  Reference reference(options, clip.facts().size, outcome);
  while (const auto frame = clip.next()) {
    probes.see(frame->rgb);
    reference.see(frame->rgb);
  }
  outcome.json["frames"] = clip.position();
  add_probes(probes.finish(), outcome);
  reference.finish(clip.position());
  return clip.facts().size;
}

int run_check(CheckOptions options) {
  require_something_to_check(options);
  if (options.file == kStdin && options.against == kStdin)
    throw InputError(Setting::of("against"), "- given twice; stdin is read once");
  options.reference = file_or_stdin(options.against);
  const fs::path path = file_or_stdin(options.file);
  Outcome outcome;
  const bool clip = fs::is_directory(path) || is_clip(path);
  const ImageSize size =
      clip ? check_clip(path, options, outcome) : check_picture(path, options, outcome);

  const std::string file = options.file.string();
  const bool pass = outcome.failures.empty();
  if (options.json) {
    outcome.json["file"] = file;
    outcome.json["width"] = size.width;
    outcome.json["height"] = size.height;
    outcome.json["pass"] = pass;
    outcome.json["failures"] = outcome.failures;
    fmt::print("{}\n", outcome.json.dump(2, ' ', false, Json::error_handler_t::replace));
  } else if (pass) {
    fmt::print("{}: {} passed\n", printable(file), counted(outcome.checks, "check"));
  } else {
    for (const std::string& line : outcome.failures) {
      fmt::print("{}: {}\n", printable(file), printable(line));
    }
    fmt::print("{}: {} of {} failed\n", printable(file), outcome.failures.size(),
               counted(outcome.checks, "check"));
  }
  return pass ? 0 : 1;
}

}  // namespace

void add_check(CLI::App& app, Run& run) {
  auto options = std::make_shared<CheckOptions>();
  CLI::App* verb = app.add_subcommand("check", "gates on a finished picture or clip");
  verb->add_option(
          "file", options->file,
          "the picture, of any format that -i of generate reads, the clip, or a folder with "
          "the frames of one; - for stdin")
      ->required()
      ->check(path_problem);
  verb->add_option(
          "--probe", options->probes,
          "[FRAME:]X,Y=R,G,B[+-TOL]: the colour that pixel (X,Y), counted from the top left, "
          "must show; in a clip in that frame, counted from 0, else in every one; may be "
          "repeated, several are separated by ;")
      ->allow_extra_args(false)
      ->delimiter(kListSeparator)
      ->envname("DIPTYCH_PROBE");
  verb->add_option("--probes", options->probe_file, "a YAML file of probes")
      ->check(path_problem)
      ->envname("DIPTYCH_PROBES");
  verb->add_option("--tolerance", options->tolerance,
                   "largest difference in any channel for probes without their own (default: the "
                   "YAML file's, else 5)")
      ->check(number_problem)
      ->envname("DIPTYCH_TOLERANCE");
  verb->add_option(
          "--against", options->against,
          "a reference of the same size: a picture, or of a clip one with as many frames; - for "
          "stdin")
      ->check(path_problem)
      ->envname("DIPTYCH_AGAINST");
  verb->add_option("--min-ssim", options->gates.min_ssim,
                   "smallest SSIM to the reference (1: equal)")
      ->check(number_problem)
      ->envname("DIPTYCH_MIN_SSIM");
  verb->add_option("--min-ms-ssim", options->gates.min_ms_ssim,
                   "smallest MS-SSIM to the reference (1: equal)")
      ->check(number_problem)
      ->envname("DIPTYCH_MIN_MS_SSIM");
  verb->add_option("--min-psnr", options->gates.min_psnr, "smallest PSNR to the reference, in dB")
      ->check(number_problem)
      ->envname("DIPTYCH_MIN_PSNR");
  verb->add_option("--max-abs", options->gates.max_abs,
                   "largest difference of any level to the reference, 0 to 255")
      ->check(number_problem)
      ->envname("DIPTYCH_MAX_ABS");
  verb->add_option("--min-cosine", options->gates.min_cosine,
                   "smallest cosine between the picture and the reference")
      ->check(number_problem)
      ->envname("DIPTYCH_MIN_COSINE");
  verb->add_flag("--json", options->json, "every check with found and expected, as JSON on stdout")
      ->envname("DIPTYCH_JSON");
  verb->footer(
      "Exit code 0: all checks passed, in one line; 1: each failed check with found and expected.\n"
      "In a clip every frame must pass; the one that is furthest off is told.\n"
      "The YAML file:\n"
      "  tolerance: 5\n"
      "  probes:\n"
      "    - {x: 400, y: 700, rgb: [130, 96, 77], tolerance: 8}\n"
      "    - \"512,100=201,220,240+-5\"\n"
      "    - {x: 400, y: 700, rgb: [130, 96, 77], frame: 12}\n"
      "Examples:\n"
      "  diptych check out.png --probe 400,700=130,96,77+-8 --probe 512,100=201,220,240\n"
      "  diptych check out.mp4 --probe 12:400,700=130,96,77+-5\n"
      "  diptych check out.png --probes probes.yaml --tolerance 10\n"
      "  diptych check out.png --against reference.png --min-ssim 0.95 --max-abs 40");
  verb->callback([options, &run] { run = [options](Log&) { return run_check(*options); }; });
}

}  // namespace diptych
