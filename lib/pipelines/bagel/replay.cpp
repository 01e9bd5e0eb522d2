#include "lib/pipelines/bagel/replay.h"

#include <algorithm>
#include <array>
#include <memory>
#include <optional>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "lib/base/error.h"
#include "lib/media/image_read.h"
#include "lib/pipelines/bagel/session.h"
#include "lib/session/make_runtime.h"
#include "lib/tensor/noise.h"
#include "lib/tensor/safetensors.h"
#include "lib/text/byte_level_bpe.h"

namespace diptych {
namespace {

using Json = nlohmann::json;

// A value of case.json by pointer ("/params/cfg_text_scale"); throws InputError naming file and
// key.
template <typename T>
T field(const RecordedCase& recorded, const std::string& pointer) {
  const std::string file = (recorded.folder / "case.json").string();
  const Json::json_pointer path(pointer);
  if (!recorded.description.contains(path)) throw InputError("{}: {}: missing", file, pointer);
  try {
    return recorded.description.at(path).get<T>();
  } catch (const Json::exception&) {
    throw InputError("{}: {}: found {}, expected another type", file, pointer,
                     recorded.description.at(path).dump());
  }
}

template <typename T>
T field_or(const RecordedCase& recorded, const std::string& pointer, T otherwise) {
  return recorded.description.contains(Json::json_pointer(pointer)) ? field<T>(recorded, pointer)
                                                                    : otherwise;
}

using Size = std::pair<std::int64_t, std::int64_t>;  // height, width

Renorm renorm(const RecordedCase& recorded) {
  const auto name = field<std::string>(recorded, "/params/cfg_renorm_type");
  if (const auto found = parse_choice<Renorm>(name)) return *found;
  throw InputError("{}: /params/cfg_renorm_type: found '{}', expected {}",
                   (recorded.folder / "case.json").string(), name,
                   fmt::join(kChoiceNames<Renorm>, ", "));
}

PaintRequest paint_request(const RecordedCase& recorded, CfgMode mode) {
  PaintRequest request;
  request.renorm_whole_batch = true;
  request.guidance.text_scale = field<double>(recorded, "/params/cfg_text_scale");
  request.guidance.image_scale = field_or(recorded, "/params/cfg_img_scale", 1.0);
  const auto interval = field<std::pair<double, double>>(recorded, "/params/cfg_interval");
  std::tie(request.guidance.interval_low, request.guidance.interval_high) = interval;
  request.guidance.renorm = renorm(recorded);
  request.guidance.renorm_min = field<double>(recorded, "/params/cfg_renorm_min");
  request.steps = field<std::int64_t>(recorded, "/params/num_timesteps");
  request.timestep_shift = field<double>(recorded, "/params/timestep_shift");
  request.cfg_mode = mode;
  if (field_or(recorded, "/params/enable_taylorseer", false))
    request.step_cache.mode = StepCacheMode::taylorseer;
  return request;
}

ImageTransforms transforms_of(const RecordedCase& recorded, const BagelConfig& config) {
  ImageTransforms transforms = ImageTransforms::of(config);
  const auto read = [&](const std::string& at, ImageTransform& transform) {
    transform.max_size = field_or(recorded, at + "/max_image_size", transform.max_size);
    transform.min_size = field_or(recorded, at + "/min_image_size", transform.min_size);
    transform.stride = field_or(recorded, at + "/image_stride", transform.stride);
    transform.max_pixels = field_or(recorded, at + "/max_pixels", transform.max_pixels);
  };
  read("/transforms/vae", transforms.vae);
  read("/transforms/vit", transforms.vit);
  return transforms;
}

// Texts and pictures (files of the case's folder) in order.
BagelRequest request_of(const RecordedCase& recorded, const BagelConfig& config) {
  const ImageTransforms transforms = transforms_of(recorded, config);
  BagelRequest request;
  for (const Json& item : field<Json>(recorded, "/input_list")) {
    if (item.is_string()) {
      request.items.push_back({item.get<std::string>(), {}});
      continue;
    }
    if (!item.is_object() || !item.contains("image") || !item["image"].is_string()) {
      throw InputError("{}: /input_list: found {}, expected a text or {{\"image\": FILE}}",
                       (recorded.folder / "case.json").string(), item.dump());
    }
    const std::filesystem::path file = recorded.folder / item["image"].get<std::string>();
    request.items.push_back({{}, file});
    request.images.push_back(BagelImage::prepare(read_image(file), transforms, config));
  }
  request.answers = field_or(recorded, "/params/understanding_output", false);
  request.think = field_or(recorded, "/params/think", false);
  request.text.max_tokens = field_or(recorded, "/params/max_think_token_n", std::int64_t{1000});
  if (field_or(recorded, "/params/do_sample", false))
    request.text.sampling.temperature = field<double>(recorded, "/params/text_temperature");
  request.seed(field<std::uint64_t>(recorded, "/seed"));
  return request;
}

// The draw itself, unless the recorded start noise is another (of a reference on another
// generator): then that one, and the trace still shows what it started from. Without a recorded one
// nothing would tell a wrong draw.
Tensor start_noise(const RecordedCase& recorded, const Tensor& drawn, Log& log) {
  const std::filesystem::path inputs = recorded.folder / "inputs.safetensors";
  const SafetensorsFile file = SafetensorsFile::open(inputs);
  if (!file.entries().contains("init_noise"))
    throw InputError("{}: has no tensor 'init_noise'", inputs.string());
  const Tensor given = file.view("init_noise").to(at::kFloat);
  if (given.sizes() != drawn.sizes()) {
    throw InputError("{}: init_noise: found [{}], expected [{}]", inputs.string(),
                     fmt::join(given.sizes().vec(), ", "), fmt::join(drawn.sizes().vec(), ", "));
  }
  if (given.equal(drawn)) return drawn;
  log.info("{}: starts from the recorded noise, which is not the seed's", recorded.folder.string());
  return given.clone();
}

class BagelReplay {
 public:
  BagelReplay(const BagelCheckpoint& checkpoint, const Runtime& runtime, CfgMode mode, Log& log)
      : checkpoint_(checkpoint), runtime_(runtime), mode_(mode), log_(log) {}

  void run(const RecordedCase& recorded) {
    BagelRequest request = request_of(recorded, checkpoint_.model.config);
    // Less than the rounding decides a token, and TaylorSeer's differences of the sixth order are
    // mostly rounding then.
    const bool caches = field_or(recorded, "/params/enable_taylorseer", false);
    if (runtime_.dtype != at::kFloat && recorded_in_float32(recorded) &&
        (request.answers || request.think || caches)) {
      throw Unsupported("{}: a text or a TaylorSeer run recorded in float32 is no measure for {}",
                        (recorded.folder / "case.json").string(), c10::toString(runtime_.dtype));
    }
    std::optional<PrefilledContexts> thought;
    std::string text;
    if (request.answers || request.think) {
      TextWriter writer(checkpoint_, runtime_);
      text = write_text(request, checkpoint_, writer, runtime_, progress_, thought).text;
    }
    if (!request.answers) {
      const LatentSize size =
          request.images.empty() ? recorded_size(recorded) : request.images.back().latent;
      paint(recorded, {request}, {size}, thought ? &*thought : nullptr);
    }
    // Last: the trace, which tells where a text leaves the recorded one, is whole by now.
    if (request.answers || request.think) check_text(recorded, text);
  }

  void run_batch(const RecordedCase& recorded) {
    const auto prompts = field<std::vector<std::string>>(recorded, "/prompts");
    const auto sizes = field<std::vector<Size>>(recorded, "/image_sizes");
    if (prompts.size() != sizes.size()) {
      throw InputError("{}: {} prompts and {} sizes, expected one each",
                       (recorded.folder / "case.json").string(), prompts.size(), sizes.size());
    }
    std::vector<BagelRequest> requests(prompts.size());
    std::vector<LatentSize> latents;
    // One generator draws for all, in order.
    const at::Generator generator = cpu_generator(field<std::uint64_t>(recorded, "/seed"));
    for (std::size_t i = 0; i < prompts.size(); ++i) {
      requests[i].items = {{prompts[i], {}}};
      requests[i].generator = generator;
      latents.push_back(checkpoint_.latent_size(sizes[i].second, sizes[i].first));
    }
    paint(recorded, std::move(requests), std::move(latents), nullptr);
  }

 private:
  static bool recorded_in_float32(const RecordedCase& recorded) {
    return field_or(recorded, "/compute_dtype", std::string("float32")) == "float32";
  }

  static void check_text(const RecordedCase& recorded, const std::string& found) {
    const auto expected = field<std::string>(recorded, "/outputs/0/text");
    if (found == expected) return;
    throw CheckFailed(
        fmt::format("text {}, expected {}", Json(found).dump(), Json(expected).dump()));
  }

  LatentSize recorded_size(const RecordedCase& recorded) const {
    constexpr Size kDefault{1024, 1024};
    const auto [height, width] = field_or(recorded, "/params/image_shapes", kDefault);
    // The official code rounds down.
    const std::int64_t step = checkpoint_.model.config.pixels_per_row();
    return checkpoint_.latent_size(width / step * step, height / step * step);
  }

  void paint(const RecordedCase& recorded, std::vector<BagelRequest> requests,
             std::vector<LatentSize> sizes, const PrefilledContexts* earlier) {
    PaintRequest request = paint_request(recorded, mode_);
    request.sizes = std::move(sizes);
    PrefilledContexts contexts =
        read_for_painting(requests, request, checkpoint_, runtime_, earlier);
    BagelPainter painter(checkpoint_, request, std::move(contexts), runtime_);
    std::vector<Tensor> noise;
    for (std::size_t i = 0; i < requests.size(); ++i) {
      noise.push_back(draw_noise(painter.request().sizes[i], checkpoint_.model.config.row_width(),
                                 requests[i].generator));
    }
    painter.decode(painter.paint(start_noise(recorded, at::cat(noise), log_), progress_));
  }

  const BagelCheckpoint& checkpoint_;
  const Runtime& runtime_;
  CfgMode mode_;
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
    const auto expected = field<std::string>(recorded, at + "/decoded");
    if (found != expected) {
      throw CheckFailed(fmt::format("ids [{}] decode to {}, expected {}", fmt::join(ids, ", "),
                                    Json(found).dump(), Json(expected).dump()));
    }
  };
  for (std::size_t i = 0; i < field<Json>(recorded, "/encode").size(); ++i) {
    const std::string at = fmt::format("/encode/{}", i);
    const auto ids = tokenizer->encode(field<std::string>(recorded, at + "/text"));
    decoded_matches(at, ids);
    flat.insert(flat.end(), ids.begin(), ids.end());
    offsets.push_back(static_cast<std::int64_t>(flat.size()));
  }
  for (std::size_t i = 0; i < field<Json>(recorded, "/decode").size(); ++i) {
    const std::string at = fmt::format("/decode/{}", i);
    decoded_matches(at, field<std::vector<std::int64_t>>(recorded, at + "/ids"));
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
  const auto runtime = std::make_shared<Runtime>(make_runtime(config, log, nullptr));
  const auto checkpoint = std::make_shared<std::optional<BagelCheckpoint>>();
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
    if (!*checkpoint) {
      *checkpoint = BagelCheckpoint::open(folder, false, *runtime);
      (*checkpoint)->load();
    }
    runtime->trace = &trace;
    const auto off = std::shared_ptr<void>(nullptr, [&](void*) { runtime->trace = nullptr; });
    if (task == "vae") return replay_vae(recorded, (*checkpoint)->vae, runtime->device, trace);
    BagelReplay replay(**checkpoint, *runtime, config.cfg_mode.value(), log);
    if (task == "t2i_batch") return replay.run_batch(recorded);
    (*checkpoint)->load_vision();
    (*checkpoint)->load_head();
    replay.run(recorded);
  };
}

}  // namespace diptych
