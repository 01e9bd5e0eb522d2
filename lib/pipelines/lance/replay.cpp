#include "lib/pipelines/lance/replay.h"

#include <algorithm>
#include <array>
#include <memory>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "lib/base/error.h"
#include "lib/base/json_file.h"
#include "lib/pipelines/lance/checkpoint.h"
#include "lib/pipelines/lance/job.h"
#include "lib/pipelines/lance/replay_parts.h"
#include "lib/pipelines/mot/session.h"
#include "lib/pipelines/recorded_values.h"
#include "lib/tensor/safetensors.h"

namespace diptych {
namespace {

using Json = nlohmann::json;
namespace fs = std::filesystem;

std::string flag(const char* name) {
  return fmt::format("/flags/{}", name);
}

// Flags of the official command that are read here, or that name files, or seeds of what is
// recorded.
constexpr std::array<std::string_view, 20> kKnownFlags = {"--task",
                                                          "--resolution",
                                                          "--num_frames",
                                                          "--video_width",
                                                          "--video_height",
                                                          "--validation_num_timesteps",
                                                          "--validation_timestep_shift",
                                                          "--validation_data_seed",
                                                          "--cfg_text_scale",
                                                          "--cfg_interval",
                                                          "--cfg_renorm_type",
                                                          "--cfg_renorm_min",
                                                          "--use_KVcache",
                                                          "--text_template",
                                                          "--model_path",
                                                          "--vit_path",
                                                          "--val_dataset_config_file",
                                                          "--save_path_gen",
                                                          "--global_seed",
                                                          "--validation_noise_seed"};

// Flags that have one value here.
constexpr std::array kFixedFlags = {std::pair{"--enhance_prompt", "false"},
                                    std::pair{"--max_num_frames", "121"},
                                    std::pair{"--max_latent_size", "64"},
                                    std::pair{"--vit_type", "qwen_2_5_vl_original"},
                                    std::pair{"--apply_qwen_2_5_vl_pos_emb", "true"},
                                    std::pair{"--cfg_type", "0"}};

std::string text_of(const Json& value) {
  return value.is_string() ? value.get<std::string>() : value.dump();
}

// Recorded as a text or a boolean. Without the flag it is not set, as in the official code.
bool is_set(const RecordedCase& recorded, const char* name) {
  const std::string at = flag(name);
  if (!has_field(recorded, at)) return false;
  const Json& value = recorded.description.at(Json::json_pointer(at));
  const std::string text = text_of(value);
  if (text == "true" || text == "false") return text == "true";
  throw InputError("{}: {}: found {}, expected true or false",
                   (recorded.folder / "case.json").string(), at, value.dump());
}

void check_flags(const RecordedCase& recorded, LanceTask task) {
  const std::string file = (recorded.folder / "case.json").string();
  const auto flags = recorded.description.find("flags");
  if (flags == recorded.description.end() || !flags->is_object())
    throw InputError("{}: flags: missing, expected those of the official command", file);
  for (const auto& [name, value] : flags->items()) {
    if (std::ranges::find(kKnownFlags, name) != kKnownFlags.end()) continue;
    const auto is_it = [&](const auto& fixed) {
      return name == fixed.first && text_of(value) == fixed.second;
    };
    if (std::ranges::any_of(kFixedFlags, is_it)) continue;
    throw Unsupported("{}: flags: {} {} is not replayed", file, name, value.dump());
  }
  if (!is_set(recorded, "--text_template") && task != LanceTask::t2i && task != LanceTask::t2v)
    throw Unsupported("{}: flags: --text_template false is replayed of t2i and t2v, not of {}",
                      file, name_of(task));
}

[[noreturn]] void refuse_dataset(const RecordedCase& recorded, const std::string& found) {
  throw InputError(
      "{}: found {}, expected one prompt, or its interleave_array with the "
      "element_dtype_array",
      (recorded.folder / "dataset.json").string(), found);
}

// The one sample of dataset.json: a prompt, or what is read in order.
struct Sample {
  std::vector<InputItem> inputs;
  std::optional<LanceQuestion> question;
};

Sample read_sample(const RecordedCase& recorded) {
  const Json all = read_json_object(recorded.folder / "dataset.json");
  if (all.size() != 1) refuse_dataset(recorded, fmt::format("{} samples", all.size()));
  const Json& value = *all.begin();
  Sample sample;
  if (value.is_string()) {
    sample.inputs = {{value.get<std::string>(), {}}};
    return sample;
  }
  if (!value.is_object() || !value.contains("interleave_array") ||
      !value.contains("element_dtype_array"))
    refuse_dataset(recorded, value.dump());
  const Json &elements = value["interleave_array"], &kinds = value["element_dtype_array"];
  if (!elements.is_array() || elements.size() != kinds.size())
    refuse_dataset(recorded, value.dump());
  for (std::size_t i = 0; i < elements.size(); ++i) {
    const Json& element = elements[i];
    if (kinds[i] == "text" && element.is_array() && element.size() == 3) {
      sample.question = {element[0].get<std::string>(), element[1].get<std::string>(),
                         element[2].get<std::string>()};
      if (!sample.question->question.empty())
        sample.inputs.push_back({sample.question->question, {}});
    } else if (!element.is_string()) {
      refuse_dataset(recorded, element.dump());
    } else if (kinds[i] == "text") {
      sample.inputs.push_back({element.get<std::string>(), {}});
    } else {
      const auto kind = kinds[i] == "video" ? MediaKind::clip : MediaKind::picture;
      sample.inputs.push_back(
          InputItem::of_file(kind, recorded.folder / element.get<std::string>()));
    }
  }
  return sample;
}

void add_values(const RecordedCase& recorded, LanceTask task, const Sample& sample,
                RecordedValues& values) {
  using enum LanceTask;
  values.add_text("task", "/task", std::string(name_of(task)));
  values.add_text("resolution", flag("--resolution"),
                  recorded_field<std::string>(recorded, flag("--resolution")));
  values.add<std::uint64_t>("seed", flag("--validation_data_seed"));
  // Recorded runs draw on the CPU.
  values.add_text("noise_source", "/noise", "cpu");
  if (sample.question) {
    if (!sample.question->instruction.empty())
      values.add_text("instruction", "dataset.json", sample.question->instruction);
    return;
  }
  values.add<std::int64_t>("steps", flag("--validation_num_timesteps"));
  values.add<double>("timestep_shift", flag("--validation_timestep_shift"));
  values.add<double>("cfg_text_scale", flag("--cfg_text_scale"));
  values.add_interval("cfg_interval",
                      std::array{flag("--cfg_interval"), std::string("/defaults/cfg_interval")});
  const auto either = [&](std::string_view name, const char* flag_name, const char* otherwise) {
    const std::string own = flag(flag_name);
    const std::string at = has_field(recorded, own) ? own : otherwise;
    const Json& value = recorded.description.at(Json::json_pointer(at));
    std::string text = text_of(value);
    if (name == "cfg_renorm_type" && (text.empty() || text == "null")) text = "none";
    values.add_text(name, at, std::move(text));
  };
  either("cfg_renorm_type", "--cfg_renorm_type", "/defaults/cfg_renorm_type");
  either("cfg_renorm_min", "--cfg_renorm_min", "/defaults/cfg_renorm_min");
  if (task == t2v || task == i2v) values.add<std::int64_t>("video_frames", flag("--num_frames"));
  if (task == t2i || task == t2v) {
    values.add<std::int64_t>("width", flag("--video_width"));
    values.add<std::int64_t>("height", flag("--video_height"));
  }
}

// A case may leave its inputs, and what it does not say otherwise, to another one beside it.
RecordedCase with_inputs(const RecordedCase& recorded) {
  const std::string same = "/same_inputs_as";
  if (!has_field(recorded, same)) return recorded;
  RecordedCase whole;
  whole.folder = recorded.folder.parent_path() / recorded_field<std::string>(recorded, same);
  whole.description = read_json_object(whole.folder / "case.json");
  whole.description.update(recorded.description);
  return whole;
}

// The noise of a run in bfloat16 was rounded to it.
Tensor recorded_tensor(const RecordedCase& recorded, const char* name) {
  const SafetensorsFile file = SafetensorsFile::open(recorded.folder / "inputs.safetensors");
  if (!file.entries().contains(name)) return {};
  const bool rounded = recorded_field_or(recorded, "/kind", std::string()) == "pipeline_bf16";
  return file.view(name).to(rounded ? at::kBFloat16 : at::kFloat).to(at::kFloat).clone();
}

// Turns a case into a request, which goes a user's way through the session.
class LanceReplay {
 public:
  LanceReplay(MotSession& session, const RunConfig& config, Log& log)
      : session_(session), config_(config), log_(log) {}

  void run(const RecordedCase& recorded, LanceTask task, TraceSink& trace) {
    check_flags(recorded, task);
    const Sample sample = read_sample(recorded);
    const auto add = [&](RecordedValues& values) { add_values(recorded, task, sample, values); };
    const RunConfig request = recorded_request(config_, recorded, add, sample.inputs);
    require_measure(recorded, request);
    LanceRecording recording;
    recording.is_recorded = recording.keeps_order = true;
    if (sample.question) recording.answer = sample.question->answer;
    recording.has_template = is_set(recorded, "--text_template");
    if (!is_set(recorded, "--use_KVcache")) recording.uncond_ids = LanceUncondIds::own;
    const auto& checkpoint = dynamic_cast<const LanceCheckpoint&>(session_.checkpoint());
    LanceJob job(request, checkpoint, session_.runtime(), log_, recording);
    if (!request.answers()) {
      job.recorded_noise = recorded_tensor(recorded, "noise.initial");
      if (job.recorded_noise.defined() &&
          (job.recorded_noise.dim() != 2 || job.recorded_noise.size(0) != job.drawn_rows()))
        throw InputError("{}: noise.initial has the shape {}, expected {} rows by the flags",
                         (recorded.folder / "inputs.safetensors").string(),
                         shown_shape(job.recorded_noise.sizes()), job.drawn_rows());
      job.recorded_posterior = recorded_tensor(recorded, "vae.cond.eps");
    }
    std::string text;
    Results results;
    results.result = [&](const Result& result, const Report&) {
      if (const auto* answer = std::get_if<Text>(&result.media)) text = answer->text;
    };
    MotJob* const alone = &job;
    session_.run_traced(std::span(&alone, 1), job.trace(trace).get(), progress_, results);
    if (request.answers()) check_answer(recorded, text);
  }

 private:
  // Less than the rounding decides a token.
  void require_measure(const RecordedCase& recorded, const RunConfig& request) const {
    if (session_.runtime().dtype == at::kFloat || !request.answers()) return;
    throw Unsupported("{}: a text recorded in float32 is no measure for {}",
                      (recorded.folder / "case.json").string(),
                      c10::toString(session_.runtime().dtype));
  }

  // The official code removes the end marker and strips what is left.
  static void check_answer(const RecordedCase& recorded, const std::string& found) {
    auto expected = recorded_field<std::string>(recorded, "/answer");
    if (const auto end = expected.find("<|im_end|>"); end != std::string::npos)
      expected.resize(end);
    const auto begin = expected.find_first_not_of(" \n\t");
    expected = begin == std::string::npos
                   ? ""
                   : expected.substr(begin, expected.find_last_not_of(" \n\t") - begin + 1);
    if (found == expected) return;
    throw CheckFailed(
        fmt::format("text {}, expected {}", Json(found).dump(), Json(expected).dump()));
  }

  MotSession& session_;
  const RunConfig& config_;
  Log& log_;
  Progress progress_{log_, ProgressStyle::none};
};

}  // namespace

CaseReplay replay_lance(const fs::path& folder, const RunConfig& config, Log& log) {
  RunConfig own = config;
  own.model = folder;
  struct Loaded {
    std::unique_ptr<MotSession> session;
    bool of_clips = false;
  };
  const auto last = std::make_shared<Loaded>();
  return [=, &log](const RecordedCase& recorded, TraceSink& trace) {
    const std::string task = recorded.task();
    if (replay_lance_part(task, recorded, own, trace) ||
        replay_lance_inputs(task, recorded, own, trace))
      return;
    const auto known = parse_choice<LanceTask>(task);
    if (!known) {
      throw Unsupported("{}: task '{}' is not in this version (known: {}, {})",
                        (recorded.folder / "case.json").string(), task,
                        fmt::join(kLanceParts, ", "), fmt::join(kChoiceNames<LanceTask>, ", "));
    }
    if (last->session == nullptr || last->of_clips != is_of_clips(*known)) {
      last->session.reset();  // its weights go before others come
      RunConfig opened = own;
      opened.task = task;
      *last = {std::make_unique<MotSession>(opened, kLanceOpening, log), is_of_clips(*known)};
    }
    LanceReplay(*last->session, own, log).run(with_inputs(recorded), *known, trace);
  };
}

}  // namespace diptych
