#include "lib/pipelines/bagel/replay.h"

#include <algorithm>
#include <array>
#include <memory>
#include <span>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "lib/base/error.h"
#include "lib/media/image_transform.h"
#include "lib/pipelines/bagel/family_config.h"
#include "lib/pipelines/bagel/job.h"
#include "lib/pipelines/mot/session.h"
#include "lib/pipelines/recorded_values.h"
#include "lib/tensor/safetensors.h"
#include "lib/text/byte_level_bpe.h"

namespace diptych {
namespace {

using Json = nlohmann::json;

using Size = std::pair<std::int64_t, std::int64_t>;  // height, width

// Of a picture, its size aside.
void add_painting(const RecordedCase& recorded, RecordedValues& values) {
  values.add<double>("cfg_text_scale", "/params/cfg_text_scale");
  values.add_if_there<double>("cfg_img_scale", "/params/cfg_img_scale");
  values.add_interval("cfg_interval", std::array<std::string, 1>{"/params/cfg_interval"});
  values.add<std::string>("cfg_renorm_type", "/params/cfg_renorm_type");
  values.add<double>("cfg_renorm_min", "/params/cfg_renorm_min");
  values.add<std::int64_t>("steps", "/params/num_timesteps");
  values.add<double>("timestep_shift", "/params/timestep_shift");
  const std::string taylorseer = "/params/enable_taylorseer";
  if (recorded_field_or(recorded, taylorseer, false))
    values.add_text("cache_mode", taylorseer, std::string(name_of(StepCacheMode::taylorseer)));
}

void add_size(RecordedValues& values, const std::string& pointer, const Size& size) {
  values.add_text("height", pointer, fmt::format("{}", size.first));
  values.add_text("width", pointer, fmt::format("{}", size.second));
}

ImageTransforms transforms_of(const RecordedCase& recorded, const BagelConfig& config) {
  ImageTransforms transforms = ImageTransforms::of(config);
  const auto read = [&](const std::string& at, ImageTransform& transform) {
    transform.max_size = recorded_field_or(recorded, at + "/max_image_size", transform.max_size);
    transform.min_size = recorded_field_or(recorded, at + "/min_image_size", transform.min_size);
    transform.stride = recorded_field_or(recorded, at + "/image_stride", transform.stride);
    transform.max_pixels = recorded_field_or(recorded, at + "/max_pixels", transform.max_pixels);
  };
  read("/transforms/vae", transforms.vae);
  read("/transforms/vit", transforms.vit);
  return transforms;
}

// Texts and pictures (files of the case's folder) in order.
std::vector<InputItem> inputs_of(const RecordedCase& recorded) {
  std::vector<InputItem> inputs;
  for (const Json& item : recorded_field<Json>(recorded, "/input_list")) {
    if (item.is_string()) {
      inputs.push_back({item.get<std::string>(), {}});
      continue;
    }
    if (!item.is_object() || !item.contains("image") || !item["image"].is_string()) {
      throw InputError("{}: /input_list: found {}, expected a text or {{\"image\": FILE}}",
                       (recorded.folder / "case.json").string(), item.dump());
    }
    inputs.push_back({{}, recorded.folder / item["image"].get<std::string>()});
  }
  return inputs;
}

// The recorded start noise of all pictures, float32 [rows, width]. Without one nothing would tell a
// wrong draw.
Tensor recorded_noise(const RecordedCase& recorded) {
  const std::filesystem::path inputs = recorded.folder / "inputs.safetensors";
  const SafetensorsFile file = SafetensorsFile::open(inputs);
  if (!file.entries().contains("init_noise"))
    throw InputError("{}: has no tensor 'init_noise'", inputs.string());
  return file.view("init_noise").to(at::kFloat).clone();
}

bool recorded_in_float32(const RecordedCase& recorded) {
  return recorded_field_or(recorded, "/compute_dtype", std::string("float32")) == "float32";
}

void check_text(const RecordedCase& recorded, const std::string& found) {
  const auto expected = recorded_field<std::string>(recorded, "/outputs/0/text");
  if (found == expected) return;
  throw CheckFailed(fmt::format("text {}, expected {}", Json(found).dump(), Json(expected).dump()));
}

// The checkpoint of a session that this family has opened.
const BagelCheckpoint& bagel_of(const MotSession& session) {
  return dynamic_cast<const BagelCheckpoint&>(session.checkpoint());
}

// Turns a case into requests, which go a user's way through the session.
class BagelReplay {
 public:
  BagelReplay(MotSession& session, const RunConfig& config, Log& log)
      : session_(session), checkpoint_(bagel_of(session)), config_(config), log_(log) {}

  void run(const RecordedCase& recorded, TraceSink& trace) {
    const RunConfig request = request_of(recorded);
    require_measure(recorded, request);
    BagelRecording recording;
    recording.transforms = transforms_of(recorded, checkpoint_.model.config);
    recording.is_recorded = true;
    std::string text;
    Results results;
    results.plan = [&](std::size_t, std::string_view plan, const std::string&) { text = plan; };
    results.result = [&](const Result& result, const Report&) {
      if (const auto* answer = std::get_if<Text>(&result.media)) text = answer->text;
    };
    run_jobs(recorded, {request}, recording, trace, results);
    // Last: the trace, which tells where a text leaves the recorded one, is whole by now.
    if (request.answers() || request.think) check_text(recorded, text);
  }

  void run_batch(const RecordedCase& recorded, TraceSink& trace) {
    const auto prompts = recorded_field<std::vector<std::string>>(recorded, "/prompts");
    const auto sizes = recorded_field<std::vector<Size>>(recorded, "/image_sizes");
    if (prompts.size() != sizes.size()) {
      throw InputError("{}: {} prompts and {} sizes, expected one each",
                       (recorded.folder / "case.json").string(), prompts.size(), sizes.size());
    }
    std::vector<RunConfig> requests;
    for (std::size_t i = 0; i < prompts.size(); ++i) {
      const auto add = [&](RecordedValues& values) {
        values.add<std::uint64_t>("seed", "/seed");
        add_painting(recorded, values);
        add_size(values, "/image_sizes", sizes[i]);
      };
      requests.push_back(recorded_request(config_, recorded, add, {{prompts[i], {}}}));
    }
    BagelRecording recording;
    recording.official_batch = recording.is_recorded = true;
    Results results;
    results.result = [](const Result&, const Report&) {};
    run_jobs(recorded, requests, recording, trace, results);
  }

 private:
  RunConfig request_of(const RecordedCase& recorded) const {
    const std::vector<InputItem> inputs = inputs_of(recorded);
    const std::int64_t pictures = std::ranges::count_if(inputs, &InputItem::is_image);
    const bool answers = recorded_field_or(recorded, "/params/understanding_output", false);
    const MediaKind makes = answers ? MediaKind::text : MediaKind::picture;
    const auto add = [&](RecordedValues& values) {
      values.add_text("task", "/params/understanding_output",
                      std::string(bagel_config().task_for({.pictures = pictures}, makes)->name));
      values.add<std::uint64_t>("seed", "/seed");
      add_text_values(recorded, answers, values);
      if (!answers) add_painting(recorded, values);
      if (!answers && pictures == 0) add_rounded_size(recorded, values);
    };
    return recorded_request(config_, recorded, add, inputs);
  }

  // The official code has one limit for plans and answers, with the default of plans.
  void add_text_values(const RecordedCase& recorded, bool answers, RecordedValues& values) const {
    const bool think = recorded_field_or(recorded, "/params/think", false);
    const std::string limit = "/params/max_think_token_n";
    if (think) values.add_text("think", "/params/think", "true");
    if (think) values.add_if_there<std::int64_t>("max_think_tokens", limit);
    if (answers && !think)
      values.add_text(
          "max_tokens", limit,
          fmt::format("{}", recorded_field_or(recorded, limit, config_.text.max_think_tokens)));
    if (recorded_field_or(recorded, "/params/do_sample", false))
      values.add<double>("temperature", "/params/text_temperature");
  }

  // The official code rounds down.
  void add_rounded_size(const RecordedCase& recorded, RecordedValues& values) const {
    const std::string shapes = "/params/image_shapes";
    if (!recorded.description.contains(Json::json_pointer(shapes))) return;
    const auto [height, width] = recorded_field<Size>(recorded, shapes);
    const std::int64_t step = checkpoint_.model.config.pixels_per_row();
    add_size(values, shapes, {height / step * step, width / step * step});
  }

  // Less than the rounding decides a token, and TaylorSeer's differences of the sixth order are
  // mostly rounding then.
  void require_measure(const RecordedCase& recorded, const RunConfig& request) const {
    const bool decides =
        request.answers() || request.think || request.cache_mode == StepCacheMode::taylorseer;
    const at::ScalarType dtype = session_.runtime().dtype;
    if (dtype == at::kFloat || !recorded_in_float32(recorded) || !decides) return;
    throw Unsupported("{}: a text or a TaylorSeer run recorded in float32 is no measure for {}",
                      (recorded.folder / "case.json").string(), c10::toString(dtype));
  }

  void run_jobs(const RecordedCase& recorded, const std::vector<RunConfig>& requests,
                const BagelRecording& recording, TraceSink& trace, const Results& results) {
    std::vector<std::unique_ptr<BagelJob>> jobs;
    std::vector<MotJob*> group;
    for (const RunConfig& request : requests) {
      jobs.push_back(
          std::make_unique<BagelJob>(request, checkpoint_, session_.runtime(), log_, recording));
      group.push_back(jobs.back().get());
    }
    if (!requests.front().answers()) give_noise(recorded, jobs);
    session_.run_traced(group, jobs.front()->trace(trace).get(), progress_, results);
  }

  // To each picture its rows of the recorded noise.
  void give_noise(const RecordedCase& recorded,
                  const std::vector<std::unique_ptr<BagelJob>>& jobs) const {
    const Tensor noise = recorded_noise(recorded);
    const std::int64_t width = checkpoint_.model.config.row_width();
    std::int64_t rows = 0;
    for (const auto& job : jobs) rows += job->size().rows();
    if (noise.sizes() != at::IntArrayRef({rows, width})) {
      throw InputError("{}: init_noise: found [{}], expected [{}, {}]",
                       (recorded.folder / "inputs.safetensors").string(),
                       fmt::join(noise.sizes().vec(), ", "), rows, width);
    }
    std::int64_t row = 0;
    for (const auto& job : jobs) {
      job->recorded_noise = noise.narrow(0, row, job->size().rows());
      row += job->size().rows();
    }
  }

  MotSession& session_;
  const BagelCheckpoint& checkpoint_;
  const RunConfig& config_;
  Log& log_;
  Progress progress_{log_, ProgressStyle::none};
};

// Strings to ids under the recording's names; texts come back inside case.json.
void replay_tokenizer(const RecordedCase& recorded, const std::filesystem::path& folder,
                      TraceSink& trace) {
  const auto tokenizer = load_byte_level_bpe(folder);
  std::vector<std::int64_t> flat, offsets = {0};
  const auto decoded_matches = [&](const std::string& at, const std::vector<std::int64_t>& ids) {
    const std::string found = tokenizer->decode(ids);
    const auto expected = recorded_field<std::string>(recorded, at + "/decoded");
    if (found != expected) {
      throw CheckFailed(fmt::format("ids [{}] decode to {}, expected {}", fmt::join(ids, ", "),
                                    Json(found).dump(), Json(expected).dump()));
    }
  };
  for (std::size_t i = 0; i < recorded_field<Json>(recorded, "/encode").size(); ++i) {
    const std::string at = fmt::format("/encode/{}", i);
    const auto ids = tokenizer->encode(recorded_field<std::string>(recorded, at + "/text"));
    decoded_matches(at, ids);
    flat.insert(flat.end(), ids.begin(), ids.end());
    offsets.push_back(static_cast<std::int64_t>(flat.size()));
  }
  for (std::size_t i = 0; i < recorded_field<Json>(recorded, "/decode").size(); ++i) {
    const std::string at = fmt::format("/decode/{}", i);
    decoded_matches(at, recorded_field<std::vector<std::int64_t>>(recorded, at + "/ids"));
  }
  trace.record("tokens.flat_ids", at::tensor(flat, at::kLong));
  trace.record("tokens.offsets", at::tensor(offsets, at::kLong));
}

// Pictures N.image with N.noise through encoder and decoder, and z_random through the decoder.
void replay_vae(const RecordedCase& recorded, const FluxVae& vae, at::Device device,
                TraceSink& trace) {
  const SafetensorsFile inputs = SafetensorsFile::open(recorded.folder / "inputs.safetensors");
  for (std::size_t n = 0; inputs.entries().contains(fmt::format("{}.image", n)); ++n) {
    const auto record = [&](std::string_view name, const Tensor& value) {
      trace.record(fmt::format("{}.{}", n, name), value);
    };
    const Tensor image = inputs.view(fmt::format("{}.image", n)).to(device);
    const Tensor noise = inputs.view(fmt::format("{}.noise", n)).to(device);
    record("image", image);
    record("noise", noise);
    const Tensor moments = vae.encode_moments(image, record);
    record("moments", moments);
    const Tensor mean = vae.latent_from_moments(moments, {});
    const Tensor sampled = vae.latent_from_moments(moments, noise);
    record("latent_mean", mean);
    record("latent_sampled", sampled);
    const Tensor decoded = vae.decode(sampled, record);
    record("decoded", decoded);
    record("decoded_mean", vae.decode(mean));
    record("image_uint8", to_uint8(decoded));
  }
  if (inputs.entries().contains("z_random")) {
    trace.record("z_random.decoded", vae.decode(inputs.view("z_random").to(device)));
  }
}

}  // namespace

CaseReplay replay_bagel(const std::filesystem::path& folder, const RunConfig& config, Log& log) {
  TORCH_CHECK(config.family == &bagel_config(), "[replay] needs the defaults of the family");
  RunConfig own = config;
  own.model = folder;
  struct Loaded {
    std::unique_ptr<MotSession> session;
    VaeDtype vae_dtype = VaeDtype::automatic;
  };
  const auto last = std::make_shared<Loaded>();
  return [=, &log](const RecordedCase& recorded, TraceSink& trace) {
    const std::string task = recorded.task();
    if (task == "tokenizer") return replay_tokenizer(recorded, folder, trace);
    constexpr std::array kTasks = {"t2i",  "t2i_think",  "t2i_batch",
                                   "edit", "edit_think", "edit_multi",
                                   "vae",  "understand", "understand_think"};
    if (std::ranges::find(kTasks, task) == kTasks.end()) {
      throw Unsupported("{}: task '{}' is not in this version (known: tokenizer, {})",
                        (recorded.folder / "case.json").string(), task, fmt::join(kTasks, ", "));
    }
    RunConfig needed = own;
    // The tolerances of these cases are those of float32, whatever the model's dtype.
    if (task == "vae" && needed.vae_dtype == VaeDtype::automatic)
      needed.vae_dtype = VaeDtype::float32;
    if (last->session == nullptr || needed.vae_dtype != last->vae_dtype) {
      last->session.reset();  // its weights go before others come
      *last = {std::make_unique<MotSession>(needed, kBagelOpening, log), needed.vae_dtype};
    }
    MotSession& loaded = *last->session;
    if (task == "vae") {
      Progress quiet(log, ProgressStyle::none);
      loaded.load_unplanned(quiet);
      return replay_vae(recorded, bagel_of(loaded).vae, loaded.runtime().device, trace);
    }
    BagelReplay replay(loaded, own, log);
    if (task == "t2i_batch") return replay.run_batch(recorded, trace);
    replay.run(recorded, trace);
  };
}

}  // namespace diptych
