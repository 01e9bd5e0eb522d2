#include "lib/pipelines/lance/trace_names.h"

#include <string_view>

namespace diptych {
namespace {

using Json = nlohmann::json;

// In the order of a run; then what the cases of single parts record.
constexpr std::string_view kStages[] = {
    "tokens",       "pos",           "vit",          "vae",         "prefill",
    "kv",           "schedule",      "latent",       "pre",         "step",
    "latent.final", "decode",        "vae_decode",   "output",      "encode_image",
    "encode_clip",  "encode_ragged", "decode_image", "decode_clip", "scale"};

constexpr std::string_view kWithin[] = {"t",
                                        "timestep",
                                        "time_embed",
                                        "vae2llm",
                                        "cond",
                                        "text_uncond",
                                        "initial",
                                        "patches_first8",
                                        "patch_embed",
                                        "block",
                                        "merger",
                                        "output",
                                        "chunk",
                                        "encoder",
                                        "conv1",
                                        "down",
                                        "middle",
                                        "decoder",
                                        "up",
                                        "mu",
                                        "log_var",
                                        "embeds",
                                        "layer",
                                        "attn",
                                        "q",
                                        "k",
                                        "v",
                                        "out",
                                        "hidden",
                                        "norm_out",
                                        "logits",
                                        "v_cond",
                                        "v_text_uncond",
                                        "v_guided_raw",
                                        "renorm_scale",
                                        "v_guided",
                                        "latent",
                                        "final",
                                        "video"};

constexpr TraceNames kNames = {kStages, kWithin, {}, {}};

struct Noise {
  std::string_view glob;
  double limit;
};

// Three times the distance of the official dtypes from float32, as case 13_t2i_bf16 states it: the
// largest of each group, |bf16 - f32| / |f32| in the 2-norm.
constexpr Noise kBf16Noise[] = {
    {"*", 3 * 0.0104},
    {"step*.v_guided*", 3 * 0.0321},
    {"*.latent", 3 * 0.0112},
    {"latent.final", 3 * 0.0112},
    {"vae_decode.*", 3 * 0.0228},
    {"vae.cond.*", 3 * 0.0228},  // the recorded runs tell of the autoencoder when it decodes alone
    {"output.*", 3 * 0.0228},
    {"tokens.*", 0},
    {"pos.*", 0},
    {"schedule.*", 0},
    {"step*.t", 0},
};

}  // namespace

const TraceNames& lance_trace_names() {
  return kNames;
}

std::vector<NormTolerance> lance_bf16_tolerances(const RecordedCase& recorded) {
  std::vector<NormTolerance> tolerances;
  const auto stated = recorded.description.find("distance_to_f32");
  if (stated == recorded.description.end()) {
    for (const auto& [glob, limit] : kBf16Noise) tolerances.push_back({std::string(glob), limit});
    return tolerances;
  }
  // The case says itself how far its tensors are from float32; a run may be three times as far.
  for (const auto& [name, distance] : stated->items())
    tolerances.push_back({name, 3 * distance.value("rel_l2_vs_f32", 0.0)});
  return tolerances;
}

}  // namespace diptych
