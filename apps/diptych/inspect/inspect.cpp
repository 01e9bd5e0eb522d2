// `diptych inspect`: what is inside a picture, a video, an answer or a checkpoint.
#include <algorithm>
#include <array>
#include <memory>
#include <set>

#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "apps/diptych/command_line.h"
#include "apps/diptych/inspect/media.h"
#include "apps/diptych/record/recorded_text.h"
#include "apps/diptych/record/replay.h"
#include "apps/diptych/verbs.h"
#include "lib/base/environment.h"
#include "lib/base/error.h"
#include "lib/base/folder.h"
#include "lib/base/messages.h"
#include "lib/base/stdin.h"
#include "lib/config/hub_cache.h"
#include "lib/config/resolve.h"
#include "lib/config/words.h"
#include "lib/media/file_bytes.h"
#include "lib/media/image_read.h"
#include "lib/media/video/clip_read.h"
#include "lib/media/video/clip_start.h"
#include "lib/pipelines/registry.h"
#include "lib/tensor/checkpoint_files.h"
#include "lib/tensor/dtype.h"
#include "lib/tensor/pth.h"
#include "lib/tensor/tensor_file.h"
#include "lib/tensor/trace.h"

namespace diptych {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

struct InspectOptions {
  fs::path path;
  std::string filter = kEveryEntry;
  bool json = false, replay = false, tensors = false;
  bool tensors_flag = false;  // not by the variable, which may be meant for other calls
  ReplaySettings again;       // of --replay
  std::string device;         // likewise, as it was given
};

struct Totals {
  std::size_t tensors = 0;
  std::uint64_t bytes = 0;
};

std::string size_text(std::uint64_t bytes) {
  constexpr double kMebi = 1024.0 * 1024.0;
  const auto value = static_cast<double>(bytes);
  if (value >= 1024 * kMebi) return fmt::format("{:.2f} GiB", value / (1024 * kMebi));
  if (value >= kMebi) return fmt::format("{:.2f} MiB", value / kMebi);
  return counted(bytes, "byte");
}

// The tensors of one file that match the filter, as JSON.
Json list_tensors(const TensorFile& file, const std::string& filter, Totals& totals) {
  Json list = Json::array();
  for (const auto& [name, entry] : file.entries()) {
    if (!glob_matches(filter, name)) continue;
    const std::uint64_t bytes = entry.end - entry.begin;
    list.push_back({{"name", name},
                    {"dtype", dtype_name(entry.dtype)},
                    {"shape", entry.shape},
                    {"bytes", bytes}});
    ++totals.tensors;
    totals.bytes += bytes;
  }
  return list;
}

void print_tensors(const Json& list) {
  std::size_t widest = 0;
  for (const Json& tensor : list) {
    widest = std::max(widest, tensor["name"].get_ref<const std::string&>().size());
  }
  for (const Json& tensor : list) {
    fmt::print("  {:<{}}  {:<4}  [{}]  {}\n", printable(tensor["name"].get<std::string>()), widest,
               tensor["dtype"].get<std::string>(),
               fmt::join(tensor["shape"].get<std::vector<std::int64_t>>(), ","),
               size_text(tensor["bytes"].get<std::uint64_t>()));
  }
}

// `listed`: with the metadata and every tensor.
void print_files(const Json& files, bool listed) {
  for (const Json& file : files) {
    fmt::print("{}: {}, {}\n", printable(file["file"].get<std::string>()),
               counted(file["tensors"].size(), "tensor"),
               size_text(file["bytes"].get<std::uint64_t>()));
    if (!listed) continue;
    for (const auto& [key, value] : file["metadata"].items()) {
      fmt::print("  # {}: {}\n", printable(key), printable_lines(value.get<std::string>()));
    }
    print_tensors(file["tensors"]);
  }
}

std::vector<fs::path> tensor_files(const fs::path& path) {
  return fs::is_directory(path) ? tensor_files_in(path) : std::vector{path};
}

// What a checkpoint folder of a known family lacks or holds beyond its layout; null for others.
Json layout_report(const fs::path& path) {
  const Family* family = fs::is_directory(path) ? family_of_checkpoint(path) : nullptr;
  if (family == nullptr || family->layout == nullptr) return nullptr;
  std::vector<std::string> problems;
  try {
    problems = family->layout(path);
  } catch (const InputError& error) {  // a file that the layout goes by
    problems.push_back(error.what());
  }
  return {{"family", family->config().name}, {"problems", problems}};
}

// A file that cannot be read, where it is not what the layout says already.
void add_problem(Json& problems, const std::string& text) {
  if (std::find(problems.begin(), problems.end(), text) == problems.end()) problems.push_back(text);
}

// `folder`: what the layout is of.
void print_layout(const Json& layout, const fs::path& folder) {
  if (layout.is_null() && fs::is_directory(folder)) {
    fmt::print("{}\n", printable(about_unknown_folder(folder, all_family_configs())));
  }
  if (layout.is_null()) return;
  const Json& problems = layout["problems"];
  fmt::print("{} layout: {}\n", layout["family"].get<std::string>(),
             problems.empty() ? "complete" : counted(problems.size(), "problem"));
  for (const Json& line : problems) fmt::print("  {}\n", printable(line.get<std::string>()));
}

// What the first family that knows the file says of it; null for others.
Json description_of(const fs::path& path) {
  if (fs::is_directory(path)) return nullptr;
  for (const Family* family : all_families()) {
    if (family->describe_file == nullptr) continue;
    if (const auto lines = family->describe_file(path); !lines.empty())
      return {{"family", family->config().name}, {"lines", lines}};
  }
  return nullptr;
}

void print_description(const Json& description) {
  if (description.is_null()) return;
  for (const Json& line : description["lines"])
    fmt::print("{}\n", printable(line.get<std::string>()));
}

// Returns 1 if the checkpoint does not match its configs.
int inspect_tensors(const InspectOptions& options) {
  Json layout = layout_report(options.path);
  const Json description = description_of(options.path);
  const std::vector<fs::path> paths = tensor_files(options.path);
  if (paths.empty() && layout.is_null())  // else the layout says what is missing
    throw InputError(
        "{}: holds no .safetensors or .pth file, nor do the folders in it, and no frame_00000.png",
        options.path.string());
  Totals all;
  Json files = Json::array();
  for (const fs::path& path : paths) {
    std::optional<TensorFile> opened;
    try {
      opened = TensorFile::open(path);
    } catch (const InputError& error) {
      if (layout.is_null()) throw;
      add_problem(layout["problems"], error.what());
      continue;
    }
    const TensorFile& file = *opened;
    Totals totals;
    Json tensors = list_tensors(file, options.filter, totals);
    all.tensors += totals.tensors;
    all.bytes += totals.bytes;
    files.push_back({{"file", path.string()},
                     {"bytes", totals.bytes},
                     {"metadata", file.metadata()},
                     {"tensors", std::move(tensors)}});
  }
  require_match(options.path, options.filter, all.tensors, "tensors");
  const int code = layout.is_null() || layout["problems"].empty() ? 0 : 1;
  if (options.json) {
    const Json report = {
        {"path", options.path.string()}, {"layout", layout},   {"description", description},
        {"tensors", all.tensors},        {"bytes", all.bytes}, {"files", std::move(files)}};
    fmt::print("{}\n", dump(report));
    return code;
  }
  print_layout(layout, options.path);
  print_description(description);
  const bool one_file = !fs::is_directory(options.path);
  print_files(files, one_file || options.tensors || options.filter != kEveryEntry);
  if (files.size() > 1) {
    fmt::print("total: {} files, {}, {}\n", files.size(), counted(all.tensors, "tensor"),
               size_text(all.bytes));
  }
  return code;
}

int replay(const InspectOptions& options, Log& log) {
  ReplaySettings settings = options.again;
  settings.file = options.path;
  settings.json = options.json;
  std::set<std::string, std::less<>> from_variables;  // settings
  const auto variable = [&, environment = process_environment()](const char* setting) {
    const std::string text = environment(environment_name(setting)).value_or("");
    if (!text.empty()) from_variables.emplace(setting);
    return text;
  };
  settings.tuned_config_dir = variable("tuned_config_dir");
  if (settings.model.empty()) settings.model = variable("model");
  const bool own_device = !options.device.empty();
  const std::string device = own_device ? options.device : variable("device");
  if (!device.empty()) {
    Options parsed;
    assign(all_fields()[field_index("device")], parsed, device,
           own_device ? "--device" : environment_name("device"));
    settings.device = parsed.run.device;
  }
  try {
    return replay_result(settings, log);
  } catch (const InputError& error) {  // the session does not know where a value came from
    const SettingProblem* problem = error.problem();
    const std::string name = problem == nullptr ? "" : problem->setting.name;
    if (!from_variables.contains(name)) throw;
    throw InputError(problem_text(*problem, {environment_name(name)}));
  }
}

bool is_picture(const fs::path& path) {
  return format_of_name(path) || picture_format(read_file_bytes(path));
}

bool is_tensor_file(const fs::path& path) {
  return path.extension() == ".safetensors" || path.extension() == kPthExtension;
}

// A folder of frames, or a file.
bool is_media(const fs::path& path) {
  return !fs::is_directory(path) || is_clip(path);
}

// A picture on stdin; a checkpoint may be named as on the hub.
fs::path find_path(const fs::path& path) {
  if (path == kStdin) return file_or_stdin(path);
  if (format_of_name(path) || !kinds_of_name(path).empty() || is_tensor_file(path)) return path;
  return model_folder(path, process_environment(), "inspect");
}

void refuse_tensors(const InspectOptions& options) {
  if (!options.tensors_flag) return;
  throw InputError(Setting::of("tensors"),
                   "{}: expected a checkpoint folder, a .safetensors or a .pth{}",
                   options.path.string(), options.replay ? ", without --replay" : "");
}

int run_inspect(InspectOptions options, Log& log) {
  const bool on_stdin = options.path == kStdin;
  options.path = find_path(options.path);
  if (!fs::exists(options.path))
    throw InputError("{}: {}", options.path.string(), why_missing(options.path, "not found"));
  if (options.replay) {
    refuse_tensors(options);
    if (!is_media(options.path) || is_tensor_file(options.path) ||
        !(is_recorded_text(options.path) || is_clip(options.path) || is_picture(options.path)))
      throw InputError(Setting::of("replay"),
                       "{}: holds no record; expected a picture, a video or an answer as .json",
                       options.path.string());
    return replay(options, log);
  }
  const MediaToInspect media{options.path, options.filter, options.json};
  const bool tensors = is_tensor_file(options.path) && !fs::is_directory(options.path);
  const bool text = !tensors && is_recorded_text(options.path);
  const bool clip = !tensors && !text && is_clip(options.path);
  if (tensors || (fs::is_directory(options.path) && !clip)) return inspect_tensors(options);
  refuse_tensors(options);
  if (text) return inspect_recorded_text(media);
  if (clip) return inspect_clip(media);
  if (is_picture(options.path)) return inspect_picture(media);
  if (on_stdin)
    throw InputError("stdin: {}; expected a picture ({}) or a video",
                     fs::is_empty(options.path) ? "empty" : "neither a picture nor a video",
                     readable_pictures());
  throw InputError(
      "{}: expected a picture ({}), a clip, a .json with an answer, a .safetensors, a .pth or a "
      "checkpoint folder",
      options.path.string(), readable_pictures());
}

void add_replay_flags(CLI::App& verb, InspectOptions& options, CLI::Option* replay) {
  ReplaySettings& again = options.again;
  // `generate` reads the same variables, so a variable must not require --replay.
  verb.add_option("-m,--model", again.model,
                  "checkpoint folder; else one of the recorded name, beside the file or here, "
                  "or the demo's (also DIPTYCH_MODEL)")
      ->type_name("DIR")
      ->check(path_problem)
      ->needs(replay);
  const auto add_input = [&](const char* flags, MediaKind kind, const char* help) {
    verb.add_option(flags, again.inputs[kind], help)
        ->type_name("FILE")
        ->allow_extra_args(false)
        ->check(path_problem)
        ->needs(replay);
  };
  add_input("-i,--image", MediaKind::picture,
            "a picture it was made from; else one of the recorded name, beside it or here; may be "
            "repeated");
  add_input("--video", MediaKind::clip, "likewise, a video");
  verb.add_option(
          "--weights", again.weights,
          "a file of weights it was made with (of --lora, --transformer and the like), or the "
          "folder "
          "of its drafter; else one of the recorded name, beside it or here; may be repeated")
      ->type_name("FILE")
      ->allow_extra_args(false)
      ->check(path_problem)
      ->needs(replay);
  verb.add_option("--messages", again.messages,
                  "the conversation that an answer goes on with; else one of the recorded name, "
                  "beside it or here; may be repeated")
      ->type_name("FILE")
      ->allow_extra_args(false)
      ->check(path_problem)
      ->needs(replay);
  verb.add_option("-o,--output", again.output,
                  "keep what is made in this file, named as the format is")
      ->type_name("FILE")
      ->check(path_problem)
      ->needs(replay);
  verb.add_option("--device", options.device, "instead of the recorded one (also DIPTYCH_DEVICE)")
      ->type_name("auto|cpu|cuda|cuda:N")
      ->check([](const std::string& device) {
        return std::string(device.empty() ? "is empty; expected auto, cpu, cuda or cuda:N" : "");
      })
      ->needs(replay);
}

constexpr const char* kFooter =
    "A picture: format, size and texts (PNG text chunks, EXIF, XMP), with JSON indented.\n"
    "A video: codec, size, frame rate, number of frames and texts (tags, comments). NAME.frames\n"
    "is a video as a folder of PNG files.\n"
    "An answer that was written as .json: its text and its record.\n"
    "A checkpoint folder: whether it is complete for its configs, what is missing or unexpected "
    "(exit code 1), and its files and those of the folders in it.\n"
    "A file of weights that a model takes (--transformer, --text-encoder, --vae, --lora): its "
    "naming,\n"
    "formats and sizes.\n"
    "--tensors lists name, dtype, shape and size of every tensor, as a single file and --json\n"
    "always do. A model in the Hugging Face cache may be given as ORG/NAME.\n"
    "--replay makes the picture, video or answer again from its record and compares the files, of\n"
    "an answer its text. Exit code 0: the same bytes, as on the same device; 1: not the same, "
    "with\n"
    "the number of pixels that differ (of .jpg and .webp after encoding), or the first character;\n"
    "2: weights, inputs or start noise are not the recorded ones. Tuned kernels come from\n"
    "DIPTYCH_TUNED_CONFIG_DIR if it is set, as for generate.\n"
    "Examples:\n"
    "  diptych inspect out.png\n"
    "  diptych inspect out.png --json | jq .text.diptych.seed\n"
    "  diptych inspect out.mp4\n"
    "  diptych inspect out.png --replay -m {model}\n"
    "  diptych inspect edited.png --replay -m {model} -i room.jpg -o again.png\n"
    "  diptych inspect answer.json --replay -m {model} -i street.jpg\n"
    "  diptych inspect {model} --filter '*.layers.0.*'";

}  // namespace

void add_inspect(CLI::App& app, Run& run) {
  auto options = std::make_shared<InspectOptions>();
  CLI::App* verb =
      app.add_subcommand("inspect", "what is inside a picture, a video, an answer or a checkpoint");
  verb->add_option("path", options->path,
                   "a picture, a video, an answer as .json, a .safetensors or .pth file, or a "
                   "checkpoint folder; - for one of the first three on stdin")
      ->required()
      ->check(path_problem);
  CLI::Option* filter = verb->add_option("--filter", options->filter,
                                         "only tensors, or text entries of a picture or video, "
                                         "whose name matches this glob (* "
                                         "and ?)")
                            ->envname("DIPTYCH_FILTER");
  const CLI::Option* tensors =
      verb->add_flag("--tensors", options->tensors,
                     "of a checkpoint folder, list its tensors, too; so does --filter")
          ->envname("DIPTYCH_TENSORS");
  verb->add_flag("--json", options->json, "the same as JSON on stdout")->envname("DIPTYCH_JSON");
  CLI::Option* replay =
      verb->add_flag("--replay", options->replay,
                     "make the picture, video or answer again from its own record")
          ->excludes(filter);
  add_replay_flags(*verb, *options, replay);
  verb->footer(kFooter);
  verb->callback([options, tensors, verb, &run] {
    options->tensors_flag = on_command_line(*verb, tensors);
    run = [options](Log& log) { return run_inspect(*options, log); };
  });
}

}  // namespace diptych
