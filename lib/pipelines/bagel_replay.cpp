#include "lib/pipelines/bagel_replay.h"

#include <memory>
#include <optional>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "lib/base/error.h"
#include "lib/pipelines/bagel.h"
#include "lib/pipelines/make_runtime.h"
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

PaintRequest paint_request(const RecordedCase& recorded, const BagelCheckpoint& checkpoint,
                           CfgMode mode) {
  PaintRequest request;
  using Size = std::pair<std::int64_t, std::int64_t>;  // height, width
  const bool batch = recorded.task() == "t2i_batch";
  request.prompts = field<std::vector<std::string>>(recorded, batch ? "/prompts" : "/input_list");
  const auto sizes = batch ? field<std::vector<Size>>(recorded, "/image_sizes")
                           : std::vector<Size>{field<Size>(recorded, "/params/image_shapes")};
  if (request.prompts.size() != sizes.size()) {
    throw InputError("{}: {} prompts and {} sizes, expected one each",
                     (recorded.folder / "case.json").string(), request.prompts.size(),
                     sizes.size());
  }
  for (const auto& [height, width] : sizes)
    request.sizes.push_back(checkpoint.latent_size(width, height));
  request.guidance.text_scale = field<double>(recorded, "/params/cfg_text_scale");
  request.guidance.image_scale = field_or(recorded, "/params/cfg_img_scale", 1.0);
  const auto interval = field<std::pair<double, double>>(recorded, "/params/cfg_interval");
  std::tie(request.guidance.interval_low, request.guidance.interval_high) = interval;
  request.guidance.renorm = parse_renorm(field<std::string>(recorded, "/params/cfg_renorm_type"));
  request.guidance.renorm_min = field<double>(recorded, "/params/cfg_renorm_min");
  request.steps = field<std::int64_t>(recorded, "/params/num_timesteps");
  request.timestep_shift = field<double>(recorded, "/params/timestep_shift");
  request.cfg_mode = mode;
  return request;
}

// The seed's own draw, unless the recording brings another start noise (a reference on another
// generator): then that one, and the trace still shows what it started from.
Tensor start_noise(const RecordedCase& recorded, const PaintRequest& request, std::int64_t width,
                   Log& log) {
  const Tensor drawn = draw_noise(request, width, field<std::uint64_t>(recorded, "/seed"));
  const std::filesystem::path inputs = recorded.folder / "inputs.safetensors";
  if (!std::filesystem::exists(inputs)) return drawn;
  const SafetensorsFile file = SafetensorsFile::open(inputs);
  if (!file.entries().contains("init_noise")) return drawn;
  const Tensor given = file.view("init_noise").to(at::kFloat);
  if (given.sizes() != drawn.sizes()) {
    throw InputError("{}: init_noise: found [{}], expected [{}]", inputs.string(),
                     fmt::join(given.sizes().vec(), ", "), fmt::join(drawn.sizes().vec(), ", "));
  }
  if (given.equal(drawn)) return drawn;
  log.info("{}: starts from the recorded noise, which is not the seed's", recorded.folder.string());
  return given.clone();
}

void replay_picture(const RecordedCase& recorded, const BagelCheckpoint& checkpoint, CfgMode mode,
                    const Runtime& runtime, Log& log) {
  for (const char* flag :
       {"/params/think", "/params/understanding_output", "/params/enable_taylorseer"}) {
    if (field_or(recorded, flag, false)) {
      throw Unsupported("{}: {}: not in this version", (recorded.folder / "case.json").string(),
                        flag);
    }
  }
  const BagelPainter painter(checkpoint, paint_request(recorded, checkpoint, mode), runtime);
  const PaintRequest& request = painter.request();
  const Tensor noise = start_noise(recorded, request, checkpoint.model.config.row_width(), log);
  Progress progress(log, ProgressStyle::none);
  painter.decode(painter.paint(noise, progress));
}

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
    if (task != "t2i" && task != "t2i_batch" && task != "vae") {
      throw Unsupported(
          "{}: task '{}' is not in this version (known: t2i, t2i_batch, tokenizer, vae)",
          (recorded.folder / "case.json").string(), task);
    }
    if (!*checkpoint) {
      *checkpoint = BagelCheckpoint::open(folder, false, *runtime);
      (*checkpoint)->load();
    }
    runtime->trace = &trace;
    const auto off = std::shared_ptr<void>(nullptr, [&](void*) { runtime->trace = nullptr; });
    if (task == "vae") return replay_vae(recorded, (*checkpoint)->vae, runtime->device, trace);
    replay_picture(recorded, **checkpoint, parse_cfg_mode(config.cfg_mode), *runtime, log);
  };
}

}  // namespace diptych
