// `diptych check`: gates on a finished picture.
#include <algorithm>
#include <memory>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "apps/diptych/verbs.h"
#include "lib/base/error.h"
#include "lib/base/messages.h"
#include "lib/base/stdin.h"
#include "lib/media/image_read.h"
#include "lib/verify/gates.h"
#include "lib/verify/json.h"
#include "lib/verify/probes.h"

namespace diptych {
namespace {

using Json = nlohmann::json;

struct CheckOptions {
  std::filesystem::path file, probe_file, against;
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
  if (gates && options.against.empty()) {
    throw InputError(
        "check: --min-ssim, --min-psnr, --max-abs and --min-cosine need --against REF");
  }
  if (!gates && !options.against.empty()) {
    throw InputError(Setting::of("against"),
                     "needs --min-ssim, --min-psnr, --max-abs or --min-cosine");
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

void check_probes(const CheckOptions& options, const Tensor& rgb, Outcome& outcome) {
  Json list = Json::array();
  for (const ProbeResult& result : evaluate_probes(all_probes(options), rgb)) {
    ++outcome.checks;
    if (!result.pass) outcome.failures.push_back(describe(result));
    list.push_back(to_json(result));
  }
  outcome.json["probes"] = std::move(list);
}

void check_gates(const CheckOptions& options, const Tensor& rgb, Outcome& outcome) {
  if (options.against.empty()) return;
  const Tensor reference = read_image(options.against);
  outcome.json["against"] = options.against.string();
  if (rgb.sizes() != reference.sizes()) {
    ++outcome.checks;
    outcome.failures.push_back(fmt::format("is {}x{}, but {} is {}x{}; expected one size",
                                           rgb.size(1), rgb.size(0), options.against.string(),
                                           reference.size(1), reference.size(0)));
    return;
  }
  Json list = Json::array();
  for (const GateResult& gate : apply_gates(options.gates, image_metrics(rgb, reference))) {
    ++outcome.checks;
    if (!gate.pass) outcome.failures.push_back(describe(gate));
    list.push_back(to_json(gate));
  }
  outcome.json["gates"] = std::move(list);
}

int run_check(const CheckOptions& options) {
  require_something_to_check(options);
  const Tensor rgb = read_image(file_or_stdin(options.file));
  Outcome outcome;
  check_probes(options, rgb, outcome);
  check_gates(options, rgb, outcome);

  const std::string file = options.file.string();
  const bool pass = outcome.failures.empty();
  if (options.json) {
    outcome.json["file"] = file;
    outcome.json["width"] = rgb.size(1);
    outcome.json["height"] = rgb.size(0);
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
  CLI::App* verb = app.add_subcommand("check", "gates on a finished picture");
  verb->add_option("file", options->file,
                   "the picture, of any format that -i of generate reads; - for stdin")
      ->required()
      ->check(path_problem);
  verb->add_option("--probe", options->probes,
                   "X,Y=R,G,B[+-TOL]: the colour that pixel (X,Y), counted from the top left, must "
                   "show; may be repeated, several are separated by ;")
      ->allow_extra_args(false)
      ->delimiter(kListSeparator)
      ->envname("DIPTYCH_PROBE");
  verb->add_option("--probes", options->probe_file, "a YAML file of probes")
      ->check(path_problem)
      ->envname("DIPTYCH_PROBES");
  verb->add_option("--tolerance", options->tolerance,
                   "largest difference in any channel for probes without their own (default: the "
                   "YAML file's, else 5)")
      ->envname("DIPTYCH_TOLERANCE");
  verb->add_option("--against", options->against, "a reference picture of the same size")
      ->check(path_problem)
      ->envname("DIPTYCH_AGAINST");
  verb->add_option("--min-ssim", options->gates.min_ssim,
                   "smallest SSIM to the reference (1: equal)")
      ->envname("DIPTYCH_MIN_SSIM");
  verb->add_option("--min-psnr", options->gates.min_psnr, "smallest PSNR to the reference, in dB")
      ->envname("DIPTYCH_MIN_PSNR");
  verb->add_option("--max-abs", options->gates.max_abs,
                   "largest difference of any level to the reference, 0 to 255")
      ->envname("DIPTYCH_MAX_ABS");
  verb->add_option("--min-cosine", options->gates.min_cosine,
                   "smallest cosine between the picture and the reference")
      ->envname("DIPTYCH_MIN_COSINE");
  verb->add_flag("--json", options->json, "every check with found and expected, as JSON on stdout")
      ->envname("DIPTYCH_JSON");
  verb->footer(
      "Exit code 0: all checks passed, in one line; 1: each failed check with found and expected.\n"
      "The YAML file:\n"
      "  tolerance: 5\n"
      "  probes:\n"
      "    - {x: 400, y: 700, rgb: [130, 96, 77], tolerance: 8}\n"
      "    - \"512,100=201,220,240+-5\"\n"
      "Examples:\n"
      "  diptych check out.png --probe 400,700=130,96,77+-8 --probe 512,100=201,220,240\n"
      "  diptych check out.png --probes probes.yaml --tolerance 10\n"
      "  diptych check out.png --against reference.png --min-ssim 0.95 --max-abs 40");
  verb->callback([options, &run] { run = [options](Log&) { return run_check(*options); }; });
}

}  // namespace diptych
