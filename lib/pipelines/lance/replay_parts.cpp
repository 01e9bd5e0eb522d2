#include "lib/pipelines/lance/replay_parts.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "lib/base/error.h"
#include "lib/models/wan_vae/wan_vae.h"
#include "lib/pipelines/lance/checkpoint.h"
#include "lib/pipelines/recorded_values.h"
#include "lib/session/make_runtime.h"
#include "lib/tensor/safetensors.h"
#include "lib/text/byte_level_bpe.h"

namespace diptych {
namespace {

using Json = nlohmann::json;

LanceFolders folders_of(const RunConfig& config) {
  return LanceFolders::of(config.model, LanceTask::t2i);
}

// Everything below "<name>." of inputs.safetensors through the encoder, or through the decoder.
class VaeReplay {
 public:
  VaeReplay(const WanVae& vae, at::Device device, TraceSink& trace)
      : vae_(vae), device_(device), trace_(trace) {}

  void encode(const std::string& name, const Tensor& video, const Tensor& eps) const {
    const WanVaeMoments moments = vae_.encode(video.to(device_), observe(name));
    trace_.record(name + ".mu", moments.mu);
    trace_.record(name + ".log_var", moments.log_var);
    trace_.record(name + ".latent", moments.latent(eps.to(device_)));
  }

  void decode(const std::string& name, const Tensor& latent) const {
    WanVaeDecoder decoder(vae_, latent.to(device_), observe(name));
    std::vector<Tensor> frames;
    while (decoder.has_next()) frames.push_back(decoder.next());
    const Tensor video = at::cat(frames, 1);
    trace_.record(name + ".video", video);
    trace_.record(name + ".frames_u8", frames_to_uint8(video));
  }

 private:
  WanVaeObserver observe(const std::string& name) const {
    return [this, name](std::int64_t chunk, std::string_view what, const Tensor& value) {
      // The last encoder output of a clip whose tail is dropped is recorded without its chunk.
      if (what == "encoder.out") trace_.record(fmt::format("{}.{}", name, what), value);
      trace_.record(fmt::format("{}.chunk{}.{}", name, chunk, what), value);
    };
  }

  const WanVae& vae_;
  at::Device device_;
  TraceSink& trace_;
};

void replay_vae(const RecordedCase& recorded, const RunConfig& config, TraceSink& trace) {
  Log quiet(LogLevel::quiet);
  const Runtime runtime = make_runtime(config, quiet);
  // The tolerances of these cases are those of float32, whatever the model's dtype.
  const Weights weights = Weights::open(folders_of(config).vae_file(), runtime.device, at::kFloat);
  const WanVae vae = WanVae::load(weights, WanVaeConfig::infer(weights), {runtime.kernels});
  const VaeReplay replay(vae, runtime.device, trace);
  trace.record("scale.mean", vae.mean);
  trace.record("scale.inv_std", vae.inverse_std);
  const SafetensorsFile inputs = SafetensorsFile::open(recorded.folder / "inputs.safetensors");
  for (const auto& [name, entry] : inputs.entries()) {
    const std::string stem = name.substr(0, name.find('.'));
    if (name == stem + ".video") replay.encode(stem, inputs.view(name), inputs.view(stem + ".eps"));
    if (name == stem + ".latent") replay.decode(stem, inputs.view(name));
  }
}

// Texts to ids and back.
void replay_tokenizer(const RecordedCase& recorded, const RunConfig& config, TraceSink& trace) {
  const auto tokenizer = load_byte_level_bpe(folders_of(config).llm);
  std::vector<std::int64_t> flat;
  for (std::size_t i = 0; i < recorded_field<Json>(recorded, "/table").size(); ++i) {
    const std::string at = fmt::format("/table/{}", i);
    const auto ids = tokenizer->encode(recorded_field<std::string>(recorded, at + "/text"));
    flat.insert(flat.end(), ids.begin(), ids.end());
    const std::string found = tokenizer->decode(ids);
    const auto expected = recorded_field<std::string>(recorded, at + "/decoded");
    if (found != expected)
      throw CheckFailed(fmt::format("ids [{}] decode to {}, expected {}", fmt::join(ids, ", "),
                                    Json(found).dump(), Json(expected).dump()));
  }
  trace.record("flat_ids", at::tensor(flat, at::kLong));
}

}  // namespace

bool replay_lance_part(const std::string& kind, const RecordedCase& recorded,
                       const RunConfig& config, TraceSink& trace) {
  if (kind == "vae") {
    replay_vae(recorded, config, trace);
  } else if (kind == "tokenizer") {
    replay_tokenizer(recorded, config, trace);
  } else {
    return false;
  }
  return true;
}

}  // namespace diptych
