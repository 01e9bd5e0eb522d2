// `diptych tune`: which kernels are fastest on this GPU, measured and kept for the runs to come.
#include <algorithm>
#include <array>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <ATen/detail/CUDAHooksInterface.h>
#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/version.h>

#include "apps/diptych/demo.h"
#include "apps/diptych/request_flags.h"
#include "apps/diptych/request_sources.h"
#include "apps/diptych/result_files.h"
#include "apps/diptych/verbs.h"
#include "lib/base/error.h"
#include "lib/base/folder.h"
#include "lib/config/family_fields.h"
#include "lib/pipelines/registry.h"
#include "lib/request/files_read.h"
#include "lib/request/output_names.h"
#include "lib/runtime/runtime.h"
#include "lib/tuning/file.h"

namespace diptych {
namespace {

namespace fs = std::filesystem;

constexpr const char* kUsualSizes = "256x256,512x512,1024x1024";

// The request fields that this verb takes, with their help here.
struct TuneField {
  std::string_view name;
  const char *value, *help;
};
constexpr std::array kFields = {
    TuneField{"config", "FILE", "stage config that names the model (also DIPTYCH_CONFIG)"},
    TuneField{"model", "DIR",
              "checkpoint folder, for its widths; without one, the released model's (also "
              "DIPTYCH_MODEL)"},
    TuneField{"device", "cuda|cuda:N", "the GPU (also DIPTYCH_DEVICE) [cuda]"}};

struct TuneFlags {
  std::map<std::string, std::vector<std::string>> values;  // of kFields, by the flags of the field
  std::string sizes = kUsualSizes, repeats = "10";
  fs::path output;
};

// Without a model the widths are those of the released model, not of the demo.
Resolved resolve_model(const TuneFlags& flags) {
  std::vector<std::string> variables;
  for (const TuneField& each : kFields) {
    const Field& field = all_fields()[field_index(each.name)];
    variables.push_back(environment_name(long_names(field.flags).front()));
  }
  Environment environment = process_environment();
  std::erase_if(environment.variables, [&](const auto& variable) {
    return std::ranges::find(variables, variable.first) == variables.end();
  });
  Resolved resolved = resolve_sources(
      {{}, flags.values, {}, std::move(environment), find_demos(), all_family_configs()});
  if (resolved.uses_demo) resolved.options.run.model.clear();
  return resolved;
}

at::Device gpu_of(const DeviceChoice& choice, Log& log) {
  using Kind = DeviceChoice::Kind;
  const at::Device device =
      resolve_device(choice.kind == Kind::automatic ? DeviceChoice{Kind::cuda} : choice, log);
  if (device.is_cuda()) return device;
  throw InputError(Setting::of("device"),
                   "{}: there is nothing to tune on the CPU; expected cuda or cuda:N",
                   device_name(choice));
}

// Width and height of each.
std::vector<std::pair<std::int64_t, std::int64_t>> read_sizes(const std::string& texts,
                                                              const FamilyConfig& family) {
  std::vector<std::pair<std::int64_t, std::int64_t>> sizes;
  for (const std::string& text : split_list(texts)) {
    Options options = default_options(family);
    assign_size(options, text);
    const auto [width, height] = std::pair(options.run.sampling.width, options.run.sampling.height);
    if (std::ranges::count(sizes, std::pair(width, height)) > 0)
      throw InputError(Setting::of("sizes"), "{}x{} given twice", width, height);
    sizes.emplace_back(width, height);
  }
  return sizes;
}

// The family that owns the folder. If none does, or there is no folder: the family of the key
// `pipeline`, which then reports what is wrong with the folder.
const Family& family_to_tune(const RunConfig& run) {
  const Family* family = &find_family(run.pipeline);  // or it is unknown
  if (!run.model.empty()) {
    require_folder(run.model, Setting::of("model"));
    if (const Family* owner = family_of_checkpoint(run.model)) family = owner;
  }
  if (family->tune == nullptr)
    throw InputError("tune: the family {} has no choices to measure", family->config().name);
  return *family;
}

fs::path choose_output(const TuneFlags& flags, const RunConfig& run, const TunedDevice& device,
                       Log& log) {
  const std::string name = tuning_file_name(device);
  fs::path output = flags.output.empty() ? fs::path(name) : flags.output;
  const Setting setting = Setting::of("output");
  require_extension(output, {".json"}, setting);
  check_not_an_input(run, output, setting);
  require_writable(output, setting);
  if (output.filename() != name)
    log.warning("--output: {}: runs will look for {}", output.string(), name);
  return output;
}

std::map<std::string, std::string> versions() {
  const auto& cuda = at::detail::getCUDAHooks();
  std::map<std::string, std::string> versions = {{"diptych", DIPTYCH_VERSION},
                                                 {"torch", TORCH_VERSION},
                                                 {"cuda", fmt::format("{}", cuda.versionCUDART())}};
  if (cuda.hasCuDNN()) versions["cudnn"] = fmt::format("{}", cuda.versionCuDNN());
  return versions;
}

// "1024 rows: cublas 0.0123, cutlass 0.0150 ms": the class's last measured rows.
std::string times_text(const TunedClass& tuned) {
  const TunedKernelInfo& info = info_of(tuned.kernel);
  const TunedTimes& times = tuned.measured.back();
  std::vector<std::string> texts;
  for (std::size_t i = 0; i < times.milliseconds.size(); ++i) {
    if (times.milliseconds[i])
      texts.push_back(fmt::format("{} {:.4f}", info.choices[i], *times.milliseconds[i]));
  }
  return fmt::format("{} rows: {} ms", times.rows, fmt::join(texts, ", "));
}

void print_table(const TuningTable& table) {
  for (const TunedClass& tuned : table.classes()) {
    const TunedKernelInfo& info = info_of(tuned.kernel);
    const auto widths = std::span(tuned.shape).first(info.widths.size());
    fmt::print("{:<18} {:<14} {:>6} to {:<6} {:<14} {}\n", info.name,
               fmt::format("{}", fmt::join(widths, "x")), tuned.first_rows, tuned.last_rows,
               info.choices[static_cast<std::size_t>(tuned.choice)], times_text(tuned));
  }
}

int start(const TuneFlags& flags, const RunConfig& run, Log& log) {
  constexpr std::int64_t kMostRepeats = 10'000;
  TuneRequest request;
  request.repeats =
      static_cast<int>(whole_number(flags.repeats, Setting::of("repeats"), 1, kMostRepeats));
  const Family& family = family_to_tune(run);
  request.model = run.model;
  request.sizes = read_sizes(flags.sizes, family.config());
  const TuneMeasurement measure = family.tune(request);
  const at::Device device = gpu_of(run.device, log);
  TuningFile file;
  file.device = tuned_device(device);
  const fs::path output = choose_output(flags, run, file.device, log);
  file.versions = versions();
  Progress progress(log, ProgressStyle::automatic);
  file.table = measure(device, progress);
  print_table(file.table);
  write_text_file(output, tuning_text(file));
  print_path(output);
  log.info("to use it, set DIPTYCH_TUNED_CONFIG_DIR={}",
           fs::absolute(output).parent_path().string());
  return 0;
}

int tune(const TuneFlags& flags, Log& log) {
  const Resolved resolved = resolve_model(flags);
  return with_places(resolved, [&] { return start(flags, resolved.options.run, log); });
}

constexpr const char* kFooter =
    "Times each choice that depends on the GPU, in bfloat16, on random values of the model's\n"
    "widths and the rows of texts and of one to three guidance branches of each size: fp8\n"
    "products by kernels of few rows, cuBLASLt or CUTLASS; int8 products by such a kernel, by one\n"
    "of many rows or with a copy of the weights; gate, up and their activation by one kernel or\n"
    "two; how norms, quantised activations and quantised rows are cut; which attention `auto`\n"
    "asks first. FILE gets the fastest choice for each range of rows, and all times.\n"
    "A run looks for a file of its GPU's name in the folder of --tuned-config-dir or\n"
    "DIPTYCH_TUNED_CONFIG_DIR, then among the built-in tables. Without one it uses the usual\n"
    "choices and logs so. A file of another GPU is refused. Most choices round differently, so\n"
    "the record of a picture keeps the hash of those it was painted with.\n"
    "Examples:\n"
    "  diptych tune\n"
    "  diptych tune -m {model} --sizes 768x1024 --repeats 30 -o tuned/NVIDIA_H200.json\n"
    "  DIPTYCH_TUNED_CONFIG_DIR=tuned diptych generate -m {model} -p \"a cup of tea\"";

}  // namespace

void add_tune(CLI::App& app, Run& run) {
  CLI::App* verb = app.add_subcommand("tune", "measure which kernels are fastest on this GPU");
  const auto flags = std::make_shared<TuneFlags>();
  for (const TuneField& each : kFields) {
    const std::string_view field = all_fields()[field_index(each.name)].flags;
    add_text_option(*verb, field, each.value, each.help, flags->values[std::string(field)]);
  }
  verb->add_option("--sizes", flags->sizes, fmt::format("of pictures [{}]", kUsualSizes))
      ->type_name("WxH,...")
      ->envname("DIPTYCH_SIZES");
  verb->add_option("--repeats", flags->repeats, "measurements, of which the median counts [10]")
      ->type_name("N")
      ->envname("DIPTYCH_REPEATS");
  verb->add_option("-o,--output", flags->output,
                   "a .json (replaced if it exists) [the GPU's name, such as NVIDIA_H200.json]")
      ->type_name("FILE")
      ->check(path_problem);
  verb->footer(kFooter);
  verb->callback([flags, &run] { run = [flags](Log& log) { return tune(*flags, log); }; });
}

}  // namespace diptych
