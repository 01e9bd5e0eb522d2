// `diptych compare`: two pictures, clips, traces or folders of them side by side.
#include <algorithm>
#include <memory>
#include <optional>
#include <vector>

#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "apps/diptych/compare/files.h"
#include "apps/diptych/compare/folders.h"
#include "apps/diptych/compare/settings.h"
#include "apps/diptych/compare/sides.h"
#include "apps/diptych/compare/table.h"
#include "apps/diptych/verbs.h"
#include "lib/base/clip_formats.h"
#include "lib/base/error.h"
#include "lib/base/folder.h"
#include "lib/base/messages.h"
#include "lib/base/stdin.h"
#include "lib/config/words.h"
#include "lib/media/image_read.h"
#include "lib/media/video/clip_read.h"
#include "lib/request/output_names.h"
#include "lib/tensor/trace.h"
#include "lib/verify/gates.h"

namespace diptych {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

// A gate for what none of the files holds would pass unseen.
std::optional<InputError> find_idle_gate(const CompareOptions& options,
                                         const CompareReport& report) {
  const auto picture_gate = options.picture_gate(), trace_gate = options.trace_gate();
  // Of answers alone a gate of pictures judges the words.
  if (report.pass && picture_gate && report.pictures + report.texts == 0)
    return InputError(*picture_gate, "no pictures were compared");
  if (report.pass && trace_gate && report.traces == 0)
    return InputError(*trace_gate, "no traces were compared");
  if (report.tensors.empty()) return std::nullopt;
  for (const std::string& text : options.tolerances) {
    const auto equals = text.rfind('=');
    if (equals == std::string::npos) continue;
    const std::string glob = text.substr(0, equals);
    const auto matches = [&](const std::string& name) { return glob_matches(glob, name); };
    if (std::ranges::none_of(report.tensors, matches))
      return InputError(Setting::of("tolerance"), "{}: {} matches no tensor of {}", in_quotes(text),
                        in_quotes(glob), options.expected.string());
  }
  return std::nullopt;
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

// What is written of two folders is another one.
void require_output_folder(const CompareOptions& options) {
  if (!options.difference.empty())
    throw InputError(Setting::of("diff"),
                     "needs two files, not folders; --output DIR writes all pairs");
  if (options.output.empty()) return;
  const Setting setting = Setting::of("output");
  for (const fs::path* input : {&options.actual, &options.expected}) {
    std::error_code none;
    if (fs::equivalent(*input, options.output, none)) {
      throw InputError(setting, "{}: is one of the two that are compared", options.output.string());
    }
  }
  if (format_of_name(options.output) || clip_format_of_name(options.output))
    throw InputError(setting, "{}: is a file's name; expected a folder for what two folders hold",
                     options.output.string());
}

// A flag that this kind of input cannot serve is an error, never ignored.
void require_flags_that_fit(const CompareOptions& options, CompareKind kind) {
  std::optional<Setting> of_pictures = options.picture_gate();
  if (!options.difference.empty()) of_pictures = Setting::of("diff");
  if (!options.output.empty()) of_pictures = Setting::of("output");
  if (kind == CompareKind::trace && of_pictures)
    throw InputError(*of_pictures, "is for pictures and clips, not traces");
  const auto of_traces = options.trace_gate();
  if ((kind == CompareKind::picture || kind == CompareKind::clip) && of_traces)
    throw InputError(*of_traces, "is for traces, not {}",
                     kind == CompareKind::clip ? "clips" : "pictures");
  if (kind == CompareKind::folder) return require_output_folder(options);
  if (kind == CompareKind::clip && !options.difference.empty())
    throw InputError(Setting::of("diff"), "needs two pictures; --output shows how clips differ");
  require_output(options, options.difference, Setting::of("diff"), written_extensions());
  Extensions extensions = written_extensions();
  if (kind == CompareKind::clip) {
    for (const std::string_view clip : written_clip_extensions())
      if (std::ranges::find(extensions, clip) == extensions.end()) extensions.push_back(clip);
  }
  require_output(options, options.output, Setting::of("output"), extensions);
  if (!options.output.empty() &&
      fs::weakly_canonical(options.output) == fs::weakly_canonical(options.difference))
    throw InputError(Setting::of("diff"), "{}: is also the place of the output",
                     options.difference.string());
}

// A folder of --dump-dir beside a trace stands for the one in it.
void take_dumped_trace(fs::path& path, const fs::path& other) {
  std::error_code ignored;
  const fs::path trace = path / kTraceName;
  const bool dumped = fs::is_directory(path, ignored) && fs::exists(trace, ignored);
  if (dumped && fs::is_regular_file(other, ignored) && kind_of(other) == CompareKind::trace)
    path = trace;
}

int run_compare(CompareOptions options) {
  if (options.actual == kStdin && options.expected == kStdin)
    throw InputError("compare: - given twice; stdin is read once");
  options.actual = file_or_stdin(options.actual);
  options.expected = file_or_stdin(options.expected);
  take_dumped_trace(options.actual, options.expected);
  take_dumped_trace(options.expected, options.actual);
  const CompareKind kind = common_kind(options.actual, options.expected);
  require_possible(options.gates);
  require_flags_that_fit(options, kind);
  require_tolerances(options);
  std::optional<MadeFolder> made;
  if (kind == CompareKind::folder && !options.output.empty())
    about(Setting::of("output"), [&] { made.emplace(options.output); });
  CompareReport report = kind == CompareKind::folder
                             ? compare_folders(options)
                             : compare_files(options.actual, options.expected, kind, options);
  const auto idle_gate = report.incomplete.empty() ? find_idle_gate(options, report) : std::nullopt;
  report.pass = report.pass && !idle_gate;
  if (options.json) {
    report.json["actual"] = options.actual.string();
    report.json["expected"] = options.expected.string();
    report.json["pass"] = report.pass;
    fmt::print("{}\n", report.json.dump(2, ' ', false, Json::error_handler_t::replace));
  } else {
    print_lines(fmt::format("{} {}", options.actual.string(), options.expected.string()), report);
  }
  if (!report.incomplete.empty()) throw InputError("compare: {}", report.incomplete);
  if (idle_gate) throw *idle_gate;
  return report.pass ? 0 : 1;
}

void add_flags(CLI::App& verb, CompareOptions& options) {
  verb.add_option(
          "actual", options.actual,
          "what to judge: a picture, a clip, a .safetensors or a folder; - for a picture or "
          "clip on stdin")
      ->check(path_problem);
  verb.add_option("expected", options.expected,
                  "a file or folder of the same kind to compare it with")
      ->check(path_problem);
  verb.add_option("--min-ssim", options.gates.min_ssim, "gate: smallest SSIM (1: equal)")
      ->check(number_problem)
      ->envname("DIPTYCH_MIN_SSIM");
  verb.add_option("--min-ms-ssim", options.gates.min_ms_ssim, "gate: smallest MS-SSIM (1: equal)")
      ->check(number_problem)
      ->envname("DIPTYCH_MIN_MS_SSIM");
  verb.add_option("--min-psnr", options.gates.min_psnr, "gate: smallest PSNR, in dB")
      ->check(number_problem)
      ->envname("DIPTYCH_MIN_PSNR");
  verb.add_option("--max-abs", options.gates.max_abs,
                  "gate: largest difference of any level, 0 to 255")
      ->check(number_problem)
      ->envname("DIPTYCH_MAX_ABS");
  verb.add_option("--min-cosine", options.gates.min_cosine,
                  "gate: smallest cosine, of the pictures or of any tensor")
      ->check(number_problem)
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
  verb.add_option("-o,--output,--output-dir", options.output,
                  "write the two and their difference side by side: a picture, or of clips a clip "
                  "or, named as a picture, a sheet of eight frames; of folders each pair into this "
                  "folder; of --a and --b the folder of everything that is made")
      ->type_name("FILE")
      ->check(path_problem);
  verb.add_flag("--json", options.json, "every number as JSON on stdout")->envname("DIPTYCH_JSON");
}

constexpr const char* kSideGroup = "Two settings";
constexpr const char* kRequestGroup = "Of both settings, as of generate";

void add_side_flags(CLI::App& verb, SideFlags& flags) {
  const auto before = verb.get_options();
  const auto text = [](std::optional<std::string>& into) {
    return CLI::callback_t([&into](const CLI::results_t& given) {
      into = given == CLI::results_t{"{}", "%%"} ? "{}" : given.front();
      return true;
    });
  };
  verb.add_option("--a", text(flags.a),
                  "run --prompts with these flags of generate, in one text; without it with those "
                  "of both")
      ->type_name("SETTINGS")
      ->expected(1);
  verb.add_option("--b", text(flags.b), "then with these, in the same process, and compare")
      ->type_name("SETTINGS")
      ->expected(1);
  verb.add_option("--prompts", flags.prompts,
                  "a list as of batch: .txt (a prompt per line), .jsonl or .yaml; - for stdin")
      ->type_name("FILE")
      ->check(path_problem);
  verb.add_flag("--repeat-a", flags.repeat_a,
                "run a twice, and tell how far its two runs are apart");
  verb.add_option("--warmup", flags.warmup,
                  "runs of the first prompt before each setting, of which nothing is kept [1]")
      ->type_name("N");
  verb.add_flag("--resume", flags.resume, "continue the comparison that DIR holds");
  for (CLI::Option* option : verb.get_options()) {
    if (std::ranges::find(before, option) == before.end()) option->group(kSideGroup);
  }
  const auto own = verb.get_options();
  add_request_flags(verb, flags, is_of_both_sides);
  for (CLI::Option* option : verb.get_options()) {
    if (std::ranges::find(own, option) == own.end()) option->group(kRequestGroup);
  }
}

// Files are compared as they are.
void refuse_side_flags(const CLI::App& verb) {
  for (const CLI::Option* option : verb.parse_order()) {
    const std::string& group = option->get_group();
    if (group == kRequestGroup || group == kSideGroup) {
      throw InputError("compare: {}: is for two settings (--b and --prompts), not for {}",
                       option->get_name(), "two that are there");
    }
  }
}

void require_positionals(const CLI::App& verb) {
  for (const char* name : {"actual", "expected"}) {
    if (verb.get_option(name)->count() == 0) throw CLI::RequiredError(name);
  }
}

}  // namespace

void add_compare(CLI::App& app, Run& run) {
  const auto options = std::make_shared<CompareOptions>();
  const auto sides = std::make_shared<SideFlags>();
  CLI::App* verb =
      app.add_subcommand("compare", "two pictures, clips, traces or folders side by side");
  add_flags(*verb, *options);
  add_side_flags(*verb, *sides);
  verb->footer(
      "Pictures: SSIM, MS-SSIM, PSNR, largest and mean difference of the levels. Clips: the same "
      "of\n"
      "every frame (--json), with mean and worst; a gate holds for every frame. A folder with\n"
      "frame_00000.png, or any with PNG files beside a clip, is a clip. Traces: how many\n"
      "tensors differ, the first of them in order of computation, and the worst. Folders: every\n"
      "picture, clip and .safetensors of the same name, with mean and worst of all; of two with\n"
      "a manifest.jsonl also the seconds, and every file that is listed, the texts of answers\n"
      "among them, whose words must be equal for every gate.\n"
      "Two settings: with --b and --prompts the list runs twice in one process, with the same\n"
      "seeds, into DIR/a and DIR/b. The model is loaded once if both settings can share it. It\n"
      "prints the seconds of each prompt, SSIM and MS-SSIM with mean and worst, and writes each\n"
      "pair side by side. `compare DIR/a DIR/b` computes the same again from the files. Exit\n"
      "code 4: some items failed, or their files cannot be read.\n"
      "Exit code 0: no gate failed; 1: a gate failed, or sizes or numbers of frames differ; 2: a\n"
      "file cannot be read or, without a gate, is missing, or a gate has nothing to judge; the\n"
      "others are compared before. A missing file or tensor and NaN fail every gate. Whole\n"
      "numbers in traces must always be equal.\n"
      "Examples:\n"
      "  diptych compare a.png b.png --diff difference.png\n"
      "  diptych compare a.mp4 b.mp4 --min-ssim 0.95 -o side_by_side.mp4\n"
      "  diptych compare out/ reference/ --min-ssim 0.98 --max-abs 12\n"
      "  diptych compare -m {model} --size 512 --prompts prompts.txt -o ab \\\n"
      "      --a \"--cfg-mode sequential\" --b \"--cfg-mode batched\" --min-ssim 0.96\n"
      "  diptych compare ours.safetensors expected.safetensors --tolerance 1e-4 --tolerance "
      "'*.hidden=1e-3'\n"
      "  diptych compare ours.safetensors expected.safetensors --case case.json --json");
  verb->callback([options, sides, verb, &run] {
    if (!sides->any()) {
      require_positionals(*verb);
      refuse_side_flags(*verb);
      run = [options](Log&) { return run_compare(*options); };
      return;
    }
    if (verb->get_option("actual")->count() > 0)
      throw InputError("compare: {}: given together with --a and --b; expected one of them",
                       options->actual.string());
    read_request_inputs(*verb, *sides);
    run = [options, sides](Log& log) { return compare_sides(*sides, *options, log); };
  });
}

}  // namespace diptych
