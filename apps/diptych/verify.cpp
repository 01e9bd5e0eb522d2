// `diptych verify`: replays recorded cases and compares every tensor they hold.
#include <algorithm>
#include <memory>

#include <CLI/CLI.hpp>
#include <c10/util/Exception.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "apps/diptych/failure.h"
#include "apps/diptych/verbs.h"
#include "lib/base/environment.h"
#include "lib/base/error.h"
#include "lib/base/folder.h"
#include "lib/base/interrupt.h"
#include "lib/base/json_file.h"
#include "lib/base/messages.h"
#include "lib/config/family_fields.h"
#include "lib/config/fields.h"
#include "lib/config/hub_cache.h"
#include "lib/pipelines/registry.h"
#include "lib/session/make_runtime.h"
#include "lib/verify/json.h"
#include "lib/verify/trace_compare.h"

namespace diptych {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

struct VerifyOptions {
  std::vector<fs::path> cases;
  fs::path model, trace_dir, tuned_config_dir;
  // The texts of the flags; config_for() parses them.
  std::string device = "cpu", dtype = "auto", cfg_mode = "batched", kernels = "automatic";
  std::string attention = "auto";
  bool json = false;
};

// The settings for cases of this family: its defaults, overridden by the flags.
RunConfig config_for(const FamilyConfig& family, const VerifyOptions& options) {
  Options read = default_options(family);
  const auto set = [&](std::string_view name, const std::string& text, const Setting& setting) {
    if (family.uses(name)) assign(all_fields()[field_index(name)], read, text, setting);
  };
  const auto set_named = [&](std::string_view name, const std::string& text) {
    set(name, text, Setting::of(name));
  };
  const Setting attention = Setting::of("read_attention").called("--attention");
  set("read_attention", options.attention, attention);
  set("paint_attention", options.attention, attention);
  set_named("device", options.device);
  set_named("dtype", options.dtype);
  set_named("cfg_mode", options.cfg_mode);
  if (!read.run.cfg_mode)
    throw InputError(Setting::of("cfg_mode"),
                     "found auto, expected batched or sequential: a case has one");
  set_named("kernels", options.kernels);
  if (!options.tuned_config_dir.empty())
    set_named("tuned_config_dir", options.tuned_config_dir.string());
  return read.run;
}

// A text of case.json, or `otherwise` if the key is absent.
std::string text_field(const fs::path& folder, const Json& description, const char* key,
                       const std::string& otherwise) {
  const auto found = description.find(key);
  if (found == description.end()) return otherwise;
  if (!found->is_string()) {
    throw InputError("{}: {}: found {}, expected a text", (folder / "case.json").string(), key,
                     found->dump());
  }
  return found->get<std::string>();
}

// A link that turns in a circle leads to none.
bool is_folder(const fs::path& path) {
  std::error_code ignored;
  return fs::is_directory(path, ignored);
}

// One that cannot be read counts: reading it then tells why.
bool has_description(const fs::path& folder) {
  std::error_code ignored;
  return fs::exists(fs::symlink_status(folder / "case.json", ignored));
}

struct FoundCases {
  std::vector<fs::path> cases;
  std::vector<fs::path> others;  // folders beside cases, without a case.json
};

// A case folder, or a folder of case folders.
FoundCases find_cases(const std::vector<fs::path>& given) {
  FoundCases found;
  for (const fs::path& path : given) {
    if (has_description(path)) {
      found.cases.push_back(path.has_filename() ? path : path.parent_path());
      continue;
    }
    std::vector<fs::path> inside;
    if (fs::is_directory(path)) {
      for (const auto& entry : fs::directory_iterator(path)) {
        if (is_folder(entry.path())) inside.push_back(entry.path());
      }
    }
    std::sort(inside.begin(), inside.end());
    const auto others = std::stable_partition(inside.begin(), inside.end(), has_description);
    if (!fs::exists(path)) throw InputError("{}: not found", path.string());
    if (!fs::is_directory(path))
      throw InputError("{}: is a file, expected the folder of a case", path.string());
    if (others == inside.begin())
      throw InputError("{}: has no case.json, nor has a folder in it", path.string());
    found.cases.insert(found.cases.end(), inside.begin(), others);
    found.others.insert(found.others.end(), others, inside.end());
  }
  return found;
}

constexpr const char* kCheckpoint = "checkpoint";

// Folders that may hold the checkpoint of a case, the likeliest first: the one that it names and
// those that this one is a part of ("checkpoint/vae"). Where there are none, "checkpoint", and for
// a case that needs no certain one, any whose name begins so.
std::vector<fs::path> checkpoints_below(const fs::path& goldens, const fs::path& name) {
  std::vector<fs::path> found;
  for (fs::path part = name; part.has_filename() && part.is_relative(); part = part.parent_path()) {
    if (is_folder(goldens / part)) found.push_back(goldens / part);
  }
  if (found.empty() && is_folder(goldens / kCheckpoint)) found.push_back(goldens / kCheckpoint);
  if (!found.empty() || name.empty() || *name.begin() != kCheckpoint) return found;
  for (const auto& entry : fs::directory_iterator(goldens)) {
    if (is_folder(entry.path()) && entry.path().filename().string().starts_with(kCheckpoint))
      found.push_back(entry.path());
  }
  std::ranges::sort(found);
  return found;
}

// The folder of the cases and their checkpoints.
fs::path goldens_of(const fs::path& folder) {
  return fs::absolute(folder).lexically_normal().parent_path().parent_path();
}

std::string named_checkpoint(const fs::path& folder, const Json& description) {
  return text_field(folder, description, "checkpoint", kCheckpoint);
}

// By the name where the one that the case names is not beside the case.
bool is_named(const RecordedCase& recorded, const fs::path& checkpoint) {
  const fs::path name = named_checkpoint(recorded.folder, recorded.description);
  const std::vector<fs::path> beside = checkpoints_below(goldens_of(recorded.folder), name);
  const fs::path given = fs::canonical(checkpoint);
  if (beside.empty()) return !name.empty() && *name.begin() == given.filename();
  return std::ranges::any_of(beside,
                             [&](const fs::path& own) { return fs::canonical(own) == given; });
}

// Shapes of another model end in errors of operations. Throws these where --model is the checkpoint
// that the case names, or where the machine is the reason.
void refuse_another(const RecordedCase& recorded, const fs::path& checkpoint) {
  const Failure failure = describe_failure(std::current_exception());
  if (failure.of_machine || is_named(recorded, checkpoint)) throw;
  throw InputError("{}: is not a case of the checkpoint {} but of {} ({})",
                   recorded.folder.string(), checkpoint.string(),
                   named_checkpoint(recorded.folder, recorded.description), failure.text);
}

fs::path checkpoint_of(const fs::path& folder, const Json& description, const fs::path& given,
                       Log& log) {
  if (!given.empty()) {
    const fs::path model = model_folder(given, process_environment(), Setting::of("model"));
    require_folder(model, Setting::of("model"));
    return model;
  }
  const std::string name = named_checkpoint(folder, description);
  const fs::path goldens = goldens_of(folder);
  const std::vector<fs::path> candidates = checkpoints_below(goldens, name);
  if (!candidates.empty()) {
    const auto known = std::ranges::find_if(
        candidates, [](const fs::path& path) { return family_of_checkpoint(path) != nullptr; });
    const fs::path& taken = known == candidates.end() ? candidates.front() : *known;
    if (description.contains("checkpoint") && !is_folder(goldens / *fs::path(name).begin())) {
      log.info_once(fmt::format("{}: not found; cases of it are replayed with {}",
                                (goldens / name).string(), taken.string()));
    }
    return taken;
  }
  throw InputError("{}: not found; name the checkpoint folder with --model",
                   (goldens / name).string());
}

bool is_bf16(const RecordedCase& recorded) {
  const auto text = [&](const char* key) {
    return text_field(recorded.folder, recorded.description, key, "");
  };
  return text("compute_dtype").starts_with("bfloat16") || text("kind").ends_with("_bf16");
}

TraceNames names_of(const Family& family) {
  return family.trace_names == nullptr ? TraceNames{} : family.trace_names();
}

Tolerances tolerances_for(const RecordedCase& recorded, const Family& family, DtypeChoice dtype) {
  Tolerances tolerances = Tolerances::from_case(recorded.description, names_of(family));
  if (family.norm_tolerances != nullptr) {
    for (NormTolerance& tolerance : family.norm_tolerances(recorded))
      tolerances.set_relative_norm(std::move(tolerance));
  }
  const bool has_own = is_bf16(recorded) && recorded.description.contains("tolerance");
  const bool coarser = dtype == DtypeChoice::bfloat16 && !has_own;
  if (coarser && family.bf16_tolerances != nullptr) {
    for (NormTolerance& tolerance : family.bf16_tolerances(recorded))
      tolerances.set_relative_norm(std::move(tolerance));
  }
  return tolerances;
}

const Family& replaying_family(const fs::path& checkpoint) {
  const Family* family = family_of_checkpoint(checkpoint);
  if (family == nullptr || family->replay == nullptr)
    throw InputError("{}: holds no checkpoint of a family that replays recorded cases",
                     checkpoint.string());
  return *family;
}

void print_json(Json line, const fs::path& folder) {
  line["case"] = folder.filename().string();
  fmt::print("{}\n", line.dump(-1, ' ', false, Json::error_handler_t::replace));
}

// A case that could not be compared.
void report_error(const fs::path& folder, const std::string& error, bool json) {
  if (json)
    print_json({{"pass", false}, {"error", error}}, folder);
  else
    fmt::print("FAIL {}: {}\n", folder.filename().string(), printable(error));
}

// What a replay came to.
struct Outcome {
  TraceComparison comparison;
  std::string problem;                // a failure that is not about tensors, or ""
  std::size_t rows = 0;               // of a table, which the replay checked itself
  std::vector<std::string> left_out;  // recorded tensors that this version does not compute
  bool pass() const { return comparison.pass() && problem.empty(); }
};

void report_json(const fs::path& folder, const Outcome& outcome) {
  Json line = to_json(outcome.comparison);
  line["pass"] = outcome.pass();
  if (outcome.rows > 0) line["rows"] = outcome.rows;
  if (!outcome.left_out.empty()) line["left_out"] = outcome.left_out;
  if (!outcome.problem.empty()) line["error"] = outcome.problem;
  print_json(std::move(line), folder);
}

// "110 tensors, smallest cosine 1.00000000", or "224 rows" of a case without tensors.
std::string summary(const Outcome& outcome) {
  const TraceComparison& comparison = outcome.comparison;
  std::vector<std::string> parts;
  if (outcome.rows > 0) parts.push_back(counted(outcome.rows, "row"));
  if (!comparison.tensors.empty() || outcome.rows == 0)
    parts.push_back(counted(comparison.tensors.size(), "tensor"));
  if (!comparison.pass())
    parts.push_back(fmt::format("{} outside their tolerance", comparison.failures()));
  if (!comparison.tensors.empty() || outcome.rows == 0)
    parts.push_back(fmt::format("smallest cosine {:.8f}", comparison.smallest_cosine()));
  return fmt::format("{}", fmt::join(parts, ", "));
}

// Prints one line for the case and, if it fails, the first divergence and the worst tensor.
void report(const fs::path& folder, const Outcome& outcome) {
  const TensorComparison* worst = outcome.comparison.worst();
  fmt::print("{} {}: {}\n", outcome.pass() ? "PASS" : "FAIL", folder.filename().string(),
             summary(outcome));
  if (!outcome.left_out.empty())
    fmt::print("  not computed here: {}\n", fmt::join(outcome.left_out, ", "));
  if (worst != nullptr) fmt::print("  worst: {}\n", describe(*worst));
  if (const TensorComparison* first = outcome.comparison.first_divergence()) {
    fmt::print("  first: {}\n", describe(*first));
  }
  if (!outcome.problem.empty()) fmt::print("  {}\n", printable(outcome.problem));
}

constexpr const char* kRecording = "expected.safetensors";

// Empty for a case without that file, such as a table whose rows its replay checks itself.
NamedTensors recorded_tensors(const fs::path& folder) {
  const fs::path file = folder / kRecording;
  return fs::exists(file) ? read_trace(file) : NamedTensors();
}

class Verifier {
 public:
  Verifier(const VerifyOptions& options, Log& log) : options_(options), log_(log) {}

  // Throws Unsupported for what this version cannot replay.
  bool run(const fs::path& folder) {
    const RecordedCase recorded{folder, read_json_object(folder / "case.json")};
    const fs::path checkpoint = checkpoint_of(folder, recorded.description, options_.model, log_);
    NamedTensors expected = recorded_tensors(folder);
    std::vector<std::string> names;
    for (const auto& [name, tensor] : expected) names.push_back(name);
    TraceSink trace(names);
    const Family& family = replaying_family(checkpoint);
    // Default: the precision of the recording.
    RunConfig config = config_for(family.config(), options_);
    if (config.dtype == DtypeChoice::automatic)
      config.dtype = is_bf16(recorded) ? DtypeChoice::bfloat16 : DtypeChoice::float32;
    Outcome outcome;
    static_cast<void>(recorded.task());  // that it has none is no matter of the checkpoint
    try {
      replay(family, checkpoint, config)(recorded, trace);
    } catch (const CheckFailed& failure) {
      outcome.problem = failure.what();
    } catch (const Unsupported& reason) {
      throw Unsupported("{} (with the checkpoint of {} in {})", reason.what(), family.config().name,
                        checkpoint.string());
    } catch (const c10::Error&) {
      if (!options_.model.empty()) refuse_another(recorded, checkpoint);
      throw;
    }
    if (!options_.trace_dir.empty()) {
      trace.write(options_.trace_dir / (folder.filename().string() + ".safetensors"));
    }
    outcome.rows = trace.rows();
    for (const std::string& name : trace.left_out()) {
      if (expected.erase(name) > 0) outcome.left_out.push_back(name);
    }
    if (expected.empty() && outcome.rows == 0 && outcome.problem.empty())
      throw InputError("{}: holds no tensors to compare", (folder / kRecording).string());
    const auto& list = trace.tensors();
    outcome.comparison =
        compare_traces(NamedTensors(list.begin(), list.end()), expected,
                       tolerances_for(recorded, family, config.dtype), names_of(family));
    if (options_.json)
      report_json(folder, outcome);
    else
      report(folder, outcome);
    return outcome.pass();
  }

 private:
  // Most cases share a checkpoint and a precision, so the last replay is kept.
  const CaseReplay& replay(const Family& family, const fs::path& checkpoint,
                           const RunConfig& config) {
    const auto key = fmt::format("{} {}", checkpoint.string(), name_of(config.dtype));
    if (key != key_) {
      replay_ = family.replay(checkpoint, config, log_);
      key_ = key;
    }
    return replay_;
  }

  const VerifyOptions& options_;
  Log& log_;
  std::string key_;
  CaseReplay replay_;
};

// A wrong flag is wrong for every case, so it is reported once, before the first one.
void check_runtime(const VerifyOptions& options) {
  Log quiet(LogLevel::quiet);
  make_runtime(config_for(*all_family_configs().front(), options), quiet);  // is it here?
}

int run_verify(const VerifyOptions& options, Log& log) {
  check_runtime(options);
  if (!options.trace_dir.empty()) require_folder(options.trace_dir, Setting::of("trace_dir"));
  Verifier verifier(options, log);
  const auto [cases, others] = find_cases(options.cases);
  for (const fs::path& folder : others) {
    log.warning("skipped {}: has no case.json", folder.string());
  }
  std::size_t passed = 0, failed = 0, skipped = others.size();
  for (const fs::path& folder : cases) {
    check_interrupted();
    try {
      ++(verifier.run(folder) ? passed : failed);
    } catch (const Unsupported& reason) {
      if (cases.size() == 1) throw;
      log.warning("skipped {}", reason.what());
      ++skipped;
    } catch (const InputError& error) {
      if (cases.size() == 1) throw;
      report_error(folder, error.what(), options.json);
      ++failed;
    } catch (const Interrupted&) {
      throw;
    } catch (const std::exception& error) {  // a failure of this case; others may pass
      if (cases.size() == 1) throw;
      report_error(folder, error.what(), options.json);
      ++failed;
    }
  }
  if (!options.json) fmt::print("{} passed, {} failed, {} skipped\n", passed, failed, skipped);
  if (passed + failed == 0) throw InputError("verify: no case was replayed, all were skipped");
  return failed == 0 ? 0 : 1;
}

}  // namespace

void add_verify(CLI::App& app, Run& run) {
  CLI::App* verb =
      app.add_subcommand("verify", "replay recorded cases and compare every tensor they hold");
  auto options = std::make_shared<VerifyOptions>();
  verb->add_option("cases", options->cases, "case folders (case.json inside), or folders of them")
      ->required()
      ->check(path_problem);
  verb->add_option("-m,--model", options->model, "checkpoint folder [the one the case names]")
      ->check(path_problem);
  verb->add_option("--trace-dir", options->trace_dir,
                   "folder for our tensors, one <case>.safetensors each")
      ->check(path_problem);
  const auto add = [&](const std::string& flag, std::string& text, const char* help) {
    verb->add_option(flag, text, help)
        ->capture_default_str()
        ->envname(environment_name(long_names(flag).front()));
  };
  add("--device", options->device, "auto, cpu, cuda or cuda:N");
  add("--dtype", options->dtype, "auto (the recording's), float32 or bfloat16");
  add("--attention", options->attention, "math, sdpa, flash, cudnn, hopper or auto");
  add("--cfg-mode", options->cfg_mode, "batched or sequential");
  add("--kernels", options->kernels, "automatic, strict or reference");
  verb->add_option(
          "--tuned-config-dir", options->tuned_config_dir,
          "folder with the table that `diptych tune` measured on this GPU [the built-in tables]")
      ->check(path_problem)
      ->envname("DIPTYCH_TUNED_CONFIG_DIR");
  verb->add_flag("--json", options->json, "one JSON object per case on stdout")
      ->envname("DIPTYCH_JSON");
  verb->footer(
      "Exit code 0: every tensor is within the tolerance of its case; 1: one is not; 2: no\n"
      "given case can be replayed. If some of several cases cannot be replayed by this version,\n"
      "they are skipped, each with a line on stderr, and counted.\n"
      "Examples:\n"
      "  diptych verify tests/goldens/{family}/cases\n"
      "  diptych verify cases/01_t2i_square --device cuda --dtype bfloat16 --attention cudnn\n"
      "  diptych verify cases/01_t2i_square --trace-dir traces");
  verb->callback(
      [options, &run] { run = [options](Log& log) { return run_verify(*options, log); }; });
}

}  // namespace diptych
