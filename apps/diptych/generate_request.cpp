// One request of `diptych generate`, from its checks to its files.
#include "apps/diptych/generate_request.h"

#include <memory>
#include <optional>
#include <string>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include "apps/diptych/degrees.h"
#include "apps/diptych/demo.h"
#include "apps/diptych/enhancer.h"
#include "apps/diptych/prompt_files.h"
#include "apps/diptych/ranks.h"
#include "apps/diptych/record/result_record.h"
#include "apps/diptych/result_files.h"
#include "apps/diptych/run_summary.h"
#include "lib/base/atomic_file.h"
#include "lib/base/error.h"
#include "lib/base/folder.h"
#include "lib/base/interrupt.h"
#include "lib/base/stdin.h"
#include "lib/config/flag_hints.h"
#include "lib/pipelines/registry.h"
#include "lib/request/enhanced_prompt.h"
#include "lib/request/files_read.h"
#include "lib/request/output_names.h"
#include "lib/request/request_checks.h"

namespace diptych {
namespace {

namespace fs = std::filesystem;

// However it is named, a folder with a slash at its end, too.
fs::path place_of(const fs::path& file) {
  std::error_code failed;
  const fs::path named = file.has_filename() ? file : file.parent_path();
  const fs::path found = fs::weakly_canonical(named, failed);
  return failed ? fs::absolute(named) : found;
}

void check_side_output(const char* name, const fs::path& path, const char* extension,
                       const std::vector<fs::path>& results) {
  if (path.empty()) return;
  const Setting setting = Setting::of(name);
  require_extension(path, {extension}, setting);
  require_writable(path, setting);
  for (const fs::path& result : results) {
    const fs::path within = place_of(path).lexically_relative(place_of(result));
    if (within == ".")
      throw InputError(setting, "{}: is also the place of the output", path.string());
    if (!within.empty() && *within.begin() != "..")  // of a folder of frames
      throw InputError(setting, "{}: lies in {}, which is replaced; expected another place",
                       path.string(), result.string());
  }
}

// A full disk shows only where something is written. A trace is the largest output by far, and
// comes last.
void require_room_for_trace(const fs::path& path) {
  constexpr std::size_t kBytes = 65'536;
  if (!path.empty()) AtomicFile(path).write(std::string(kBytes, '\0'));
}

void check_stdout(const Options& options) {
  const Setting setting = Setting::of("output", "-");
  if (options.run.sampling.batch_count > 1) {
    throw InputError(setting, "takes one result, found {} {}", options.run.sampling.batch_count,
                     kind_name(options.run.makes));
  }
  if (options.run.answers()) return;
  const bool clip = options.run.makes == MediaKind::clip;
  if (clip && clip_format_of(options) == ClipFormat::png)
    throw InputError(setting,
                     "a folder of frames has no place on stdout; expected another --format");
  if (::isatty(STDOUT_FILENO) != 0) {
    throw InputError(setting, "stdout is a terminal, which shows no {}; expected a file or pipe",
                     clip ? "video" : "picture");
  }
}

// The output name. --format sets the extension if the user gave no name.
fs::path named_output(const Resolved& resolved) {
  const Options& options = resolved.options;
  fs::path output = options.output;
  if (resolved.is_default("output") && !options.run.answers())
    output.replace_extension(result_extensions(options.run.makes, options.format).front());
  return output;
}

// What the family makes otherwise.
void refuse_video_name(const Options& options) {
  const RunConfig& run = options.run;
  if (!run.family->makes(MediaKind::clip))
    throw InputError(Setting::of("output"), "{}: {}", options.output.string(),
                     who_makes(kVideos, all_family_configs()));
  throw InputError(
      Setting::of("output"),
      SettingText{fmt::format("{}: names a video, but ", options.output.string()),
                  Setting::of("task", run.task),
                  fmt::format(" makes {}; expected {}", kind_name(run.makes),
                              fmt::join(result_extensions(run.makes, options.format), ", "))});
}

// One path per picture or clip; none for a result on stdout.
std::vector<fs::path> plan_paths(const Resolved& resolved) {
  const Options& options = resolved.options;
  std::vector<fs::path> paths;
  if (is_video_extension(options.output.extension().string()) &&
      options.run.makes != MediaKind::clip)
    refuse_video_name(options);
  const bool named_stdout = options.output == kStdin;
  if (named_stdout) check_stdout(options);
  const bool to_stdout = named_stdout || (options.run.answers() && resolved.is_default("output"));
  if (!to_stdout) {
    paths = plan_outputs(named_output(resolved), options.run.sampling.batch_count,
                         result_extensions(options.run.makes, options.format));
  }
  check_side_output("trace", options.run.trace, ".safetensors", paths);
  require_room_for_trace(options.run.trace);
  check_side_output("think_output", options.think_output, ".txt", paths);
  check_side_output("contact_sheet", options.contact_sheet, ".png", paths);
  return paths;
}

// The folder that --trace names, where it is missing.
std::unique_ptr<MadeFolder> place_trace(fs::path& trace) {
  const fs::path file = trace_file(trace);
  if (file == trace) return nullptr;
  trace = file;
  return about(Setting::of("trace"),
               [&] { return std::make_unique<MadeFolder>(file.parent_path()); });
}

// A request that passed every check.
struct CheckedRequest {
  std::unique_ptr<MadeFolder> trace_folder;
  std::vector<fs::path> paths;                 // of its results; none for an answer on stdout
  std::unique_ptr<Session> session = nullptr;  // where it has a model
  std::unique_ptr<Job> job = nullptr;
  std::unique_ptr<PromptEnhancer> enhancer = nullptr;  // where the prompt is rewritten first
};

// Of a process that shares the request and is not the one that writes.
void drop_outputs(Options& options) {
  options.run.trace.clear();
  options.think_output.clear();
  options.contact_sheet.clear();
}

void run(const Options& options, const CheckedRequest& request, Log& log) {
  const std::vector<fs::path>& paths = request.paths;
  Progress progress(log, options.progress);
  PrintedPieces pieces(progress);
  Results results;
  const bool has_record = records_text(options, paths.empty() ? fs::path() : paths.front());
  if (paths.empty() && options.run.answers() && !has_record)
    results.piece = [&](std::size_t, std::string_view piece) { pieces.print(piece); };
  const auto write = [&](const Result& result, const Report& report) {
    const Painted painted{&options, &result};
    const MadeResult made{std::span(&painted, 1), 0, &report};
    if (pieces.any()) return pieces.end();
    if (paths.empty()) return print_result(made, progress);
    const fs::path& path = paths.at(result.index);
    try {
      write_result(path, made, progress);
    } catch (const InputError& error) {  // when the request was checked it could be written
      throw WriteError("{}", error.what());
    }
    progress.clear();
    print_path(path);
  };
  std::optional<std::pair<Result, Report>> answer;  // until the hash of the weights is known
  results.result = [&](const Result& result, const Report& report) {
    check_interrupted();
    if (!writes_results(options.run)) return help_decode(result.media);
    if (!has_record) return write(result, report);
    answer.emplace(result, report);
  };
  results.plan = [&](std::size_t, std::string_view plan, const std::string&) {
    if (writes_results(options.run)) show_plan(options, plan, "", log);
  };
  request.session->run({request.job.get()}, progress, results);
  if (answer) {
    answer->second.weights_hash = request.session->weights_hash();
    write(answer->first, answer->second);
  }
  const Report report = request.session->report();
  log.info("{}", summary_line(report, options.run.makes));
  for (const std::string& hash : report.latent_hashes) log.debug("latent {}", hash);
  log.mark("the last result is there");
}

void check_results_apart(const Options& options, const std::vector<fs::path>& paths) {
  std::vector<FileWritten> files;
  for (const fs::path& path : paths) files.push_back({path, Setting::of("output")});
  files.push_back({options.think_output, Setting::of("think_output")});
  files.push_back({options.contact_sheet, Setting::of("contact_sheet")});
  files.push_back({options.run.trace, Setting::of("trace")});
  check_not_inputs(options, files);
}

// As the session sees it.
void make_job(CheckedRequest& request, const Options& options) {
  request.job = request.session->make_job(options.run);
  require_encodable(options, *request.job);
  request.job->read_inputs();
}

void check_meaning(Resolved& resolved) {
  Options& options = resolved.options;
  require_meaning(resolved, "--");
  // Variables may be for other requests.
  if (!writes_plan(options.run)) options.think_output.clear();
  if (options.run.makes != MediaKind::clip) options.contact_sheet.clear();
}

CheckedRequest check_request(Resolved& resolved, bool needs_model, Log& log) {
  Options& options = resolved.options;
  check_meaning(resolved);
  read_stdin_and_files(options.run.inputs);
  require_complete(options);
  if (needs_model) require_model(options.run);
  std::vector<fs::path> paths;
  std::unique_ptr<MadeFolder> trace_folder;
  if (writes_results(options.run)) {
    trace_folder = place_trace(options.run.trace);
    paths = plan_paths(resolved);
  } else {
    drop_outputs(options);
  }
  check_results_apart(options, paths);
  CheckedRequest request{std::move(trace_folder), std::move(paths)};
  if (has_model(options.run)) {
    request.session = open_session(options.run, log);
    make_job(request, options);
  }
  if (enhances(options)) {
    request.enhancer = std::make_unique<PromptEnhancer>(options, log);
    request.enhancer->check(options);
  }
  log.mark("the request is checked");
  return request;
}

}  // namespace

fs::path printed_output(const Resolved& resolved) {
  const bool answers = resolved.options.run.answers();
  return answers && resolved.is_default("output") ? fs::path(kStdin) : named_output(resolved);
}

int generate_request(Resolved& resolved, const std::vector<ParallelDegrees>& ways, Log& log) {
  Options& options = resolved.options;
  // An enhancer's weights come first; where degrees are measured, other requests do.
  options.run.load_ahead = !enhances(options) && ways.empty();
  CheckedRequest request = check_request(resolved, true, log);
  if (resolved.uses_demo) note_demo(options.run, log);
  if (options.run.sampling.seed_drawn) log.info("seed {}", options.run.sampling.seed);
  std::optional<MadeFolder> folder;
  if (!request.paths.empty() && request.paths.front().has_parent_path())
    about(Setting::of("output"), [&] { folder.emplace(request.paths.front().parent_path()); });
  if (request.enhancer) {  // its weights make room for the painter's
    {
      Progress progress(log, options.progress);
      request.enhancer->rewrite(options, "", progress);
    }
    request.enhancer.reset();
    make_job(request, options);
  }
  if (!ways.empty()) {
    Progress progress(log, options.progress);
    choose_degrees(*request.session, resolved, ways, "request", progress, log);
    make_job(request, options);
  }
  run(options, request, log);
  // What is done by now needs no orderly end, and the process ends here. An answer's session may
  // still be writing the hash of its weights.
  if (!options.run.answers()) static_cast<void>(request.session.release());
  return 0;
}

int check_request_config(Resolved& resolved, bool lacks_prompt, Log& log) {
  check_request(resolved, !lacks_prompt, log);
  std::string_view missing;
  if (lacks_prompt)
    missing = has_model(resolved.options.run) ? ", but a run needs a prompt"
                                              : ", but a run needs a prompt and a model";
  const fs::path& config = resolved.options.config;
  fmt::print("{}: valid{}\n", config.empty() ? "configuration" : config.string(), missing);
  return 0;
}

}  // namespace diptych
