#include "lib/pipelines/wan/release.h"

#include <algorithm>
#include <array>
#include <fstream>
#include <initializer_list>

#include <fmt/format.h>

#include "lib/base/error.h"
#include "lib/base/json_file.h"
#include "lib/pipelines/dit/model_index.h"

namespace diptych {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

constexpr std::string_view kOfText = "WanPipeline", kOfPictures = "WanImageToVideoPipeline";

struct Preset {
  WanRelease release;
  std::string_view steps, scale, low_noise_scale, shift, width, height, frames, fps;
  bool chinese = false;  // its negative prompt
};
constexpr std::array kPresets = {
    Preset{WanRelease::t2v_1_3b, "50", "3", "0", "3", "832", "480", "81", "16"},
    Preset{WanRelease::t2v_14b, "50", "5", "0", "5", "1280", "720", "81", "16"},
    Preset{WanRelease::i2v_14b, "40", "5", "0", "3", "832", "480", "81", "16"},
    Preset{WanRelease::t2v_a14b, "40", "4", "3", "12", "832", "480", "81", "16", true},
    Preset{WanRelease::i2v_a14b, "40", "3.5", "3.5", "5", "832", "480", "81", "16", true},
    Preset{WanRelease::ti2v_5b, "50", "5", "0", "5", "1280", "704", "121", "24", true},
};

constexpr std::string_view kEnglish =
    "Bright tones, overexposed, static, blurred details, subtitles, style, works, paintings, "
    "images, static, overall gray, worst quality, low quality, JPEG compression residue, ugly, "
    "incomplete, extra fingers, poorly drawn hands, poorly drawn faces, deformed, disfigured, "
    "misshapen limbs, fused fingers, still picture, messy background, three legs, many people in "
    "the background, walking backwards";
constexpr std::string_view kChinese =
    "色调艳丽，过曝，静态，细节模糊不清，字幕，风格，作品，画作，画面，静止，整体发灰，最差质量，低"
    "质量，"
    "JPEG压缩残留，丑陋的，残缺的，多余的手指，画得不好的手部，画得不好的脸部，畸形的，毁容的，形态"
    "畸形的"
    "肢体，手指融合，静止不动的画面，杂乱的背景，三条腿，背景人很多，倒着走";

template <typename T>
T key_or(const Json& json, const fs::path& file, std::string_view key, T otherwise) {
  const auto found = json.find(key);
  if (found == json.end() || found->is_null()) return otherwise;
  try {
    return found->get<T>();
  } catch (const Json::exception&) {
    throw InputError("{}: {}: found {}, expected another type", file.string(), key, found->dump());
  }
}

bool has_part(const Json& index, std::string_view part) {
  const auto found = index.find(part);
  return found != index.end() && found->is_array() && found->size() == 2 && !(*found)[1].is_null();
}

// A file that leaves a key out means the value that this version has.
void require_one_of(const Json& json, const fs::path& file, const char* key,
                    std::initializer_list<Json> known) {
  const auto found = json.find(key);
  if (found == json.end() || found->is_null()) return;
  std::string expected;
  for (const Json& value : known) {
    if (*found == value) return;
    expected += (expected.empty() ? "" : " or ") + value.dump();
  }
  throw InputError("{}: {}: found {}, expected {}", file.string(), key, shown_json(*found),
                   expected);
}

// Of the scheduler the shift alone is taken; the rest says that it is for this kind of model.
double read_shift(const fs::path& file) {
  const Json json = read_json_object(file);
  require_one_of(json, file, "_class_name",
                 {"UniPCMultistepScheduler", "FlowMatchEulerDiscreteScheduler"});
  require_one_of(json, file, "prediction_type", {"flow_prediction"});
  require_one_of(json, file, "num_train_timesteps", {1000});
  require_one_of(json, file, "solver_order", {2});
  const double shift = key_or(json, file, "flow_shift", key_or(json, file, "shift", 3.0));
  if (shift > 0) return shift;
  throw InputError("{}: flow_shift: found {}, expected a number above 0", file.string(), shift);
}

}  // namespace

bool owns_wan(const fs::path& folder) {
  const std::string name = pipeline_class(folder);
  return name == kOfText || name == kOfPictures;
}

WanIndex WanIndex::load(const fs::path& folder) {
  const fs::path file = folder / kModelIndex;
  const Json json = read_json_object(file);
  WanIndex index;
  index.from_picture = pipeline_class(folder) == kOfPictures;
  index.expand_timesteps = key_or(json, file, "expand_timesteps", false);
  index.has_second_expert = has_part(json, "transformer_2");
  index.has_image_encoder = has_part(json, "image_encoder");
  const double ratio = key_or(json, file, "boundary_ratio", 0.0);
  // Converted single models carry one, too: it counts where there is a second expert.
  if (ratio > 0 && index.has_second_expert) index.boundary_ratio = ratio;
  if (ratio < 0 || ratio > 1)
    throw InputError("{}: boundary_ratio: found {}, expected 0 to 1", file.string(), ratio);
  index.flow_shift = read_shift(folder / "scheduler" / "scheduler_config.json");
  return index;
}

WanRelease wan_release_of(std::int64_t heads, std::int64_t in_channels, bool experts) {
  constexpr std::int64_t kLatent22 = 48, kWithPicture = 36, kSmall = 12;
  if (in_channels == kLatent22) return WanRelease::ti2v_5b;
  if (in_channels == kWithPicture) return experts ? WanRelease::i2v_a14b : WanRelease::i2v_14b;
  if (experts) return WanRelease::t2v_a14b;
  return heads <= kSmall ? WanRelease::t2v_1_3b : WanRelease::t2v_14b;
}

bool wan_has_experts(const RunConfig& run) {
  if (!run.model.empty() && fs::exists(run.model / kModelIndex))
    return WanIndex::load(run.model).has_second_expert ||
           !run.own.get<WanSettings>().transformer_2.empty();
  const WanRelease release = run.own.get<WanSettings>().release;
  return release == WanRelease::t2v_a14b || release == WanRelease::i2v_a14b;
}

namespace {

struct TransformerSizes {
  std::int64_t heads = 40, in_channels = 16;
};

// The shape of the patch embedding, from the header of a .safetensors file; nothing where there is
// none: who loads the file says what is wrong with it. This library is without torch, and so
// without lib/tensor.
std::optional<TransformerSizes> sizes_of_file(const fs::path& path) {
  constexpr std::uint64_t kMostBytes = 100'000'000;
  constexpr std::int64_t kHeadDim = 128;
  std::ifstream file(path, std::ios::binary);
  std::array<unsigned char, 8> length{};
  if (!file.read(reinterpret_cast<char*>(length.data()), length.size())) return std::nullopt;
  std::uint64_t bytes = 0;
  for (std::size_t i = 0; i < length.size(); ++i) bytes |= std::uint64_t{length[i]} << (8 * i);
  std::error_code error;
  if (bytes > std::min<std::uint64_t>(kMostBytes, fs::file_size(path, error)) || error)
    return std::nullopt;
  std::string text(bytes, '\0');
  if (!file.read(text.data(), static_cast<std::streamsize>(bytes))) return std::nullopt;
  const Json header = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!header.is_object()) return std::nullopt;
  for (const auto& [name, tensor] : header.items()) {
    if (!name.ends_with("patch_embedding.weight") || !tensor.is_object()) continue;
    const auto shape = tensor.find("shape");
    const bool fits = shape != tensor.end() && shape->is_array() && shape->size() == 5 &&
                      (*shape)[0].is_number_integer() && (*shape)[1].is_number_integer();
    if (!fits) continue;
    return TransformerSizes{(*shape)[0].get<std::int64_t>() / kHeadDim,
                            (*shape)[1].get<std::int64_t>()};
  }
  return std::nullopt;
}

// Of the file that was given, else of the folder.
TransformerSizes transformer_sizes(const RunConfig& run) {
  if (const fs::path given = run.own.get<WanSettings>().transformer; !given.empty()) {
    if (const auto sizes = sizes_of_file(given)) return *sizes;
  }
  const fs::path file = run.model / "transformer" / "config.json";
  if (!fs::exists(file) && !run.own.get<WanSettings>().transformer.empty()) return {};
  const Json config = read_json_object(file);
  const TransformerSizes usual;
  return {key_or(config, file, "num_attention_heads", usual.heads),
          key_or(config, file, "in_channels", usual.in_channels)};
}

}  // namespace

std::vector<OwnDefault> wan_defaults(const RunConfig& run) {
  WanRelease release = run.own.get<WanSettings>().release;
  std::optional<double> shift, boundary;
  if (!run.model.empty() && fs::exists(run.model / kModelIndex)) {
    const WanIndex index = WanIndex::load(run.model);
    boundary = index.boundary_ratio;
    const TransformerSizes sizes = transformer_sizes(run);
    const bool experts =
        index.has_second_expert || !run.own.get<WanSettings>().transformer_2.empty();
    release = wan_release_of(sizes.heads, sizes.in_channels, experts);
    shift = index.flow_shift;
  }
  const auto preset = std::ranges::find(kPresets, release, &Preset::release);
  std::vector<OwnDefault> defaults = {
      {"release", std::string(name_of(release))},
      {"steps", std::string(preset->steps)},
      {"cfg_text_scale", std::string(preset->scale)},
      {"guidance_scale_2", std::string(preset->low_noise_scale)},
      {"timestep_shift", shift && release == WanRelease::ti2v_5b ? fmt::format("{}", *shift)
                                                                 : std::string(preset->shift)},
      {"width", std::string(preset->width)},
      {"height", std::string(preset->height)},
      {"fps", std::string(preset->fps)},
      {"negative_prompt", std::string(preset->chinese ? kChinese : kEnglish)},
  };
  if (boundary) defaults.push_back({"boundary_ratio", fmt::format("{}", *boundary)});
  if (run.makes == MediaKind::clip)
    defaults.push_back({"video_frames", std::string(preset->frames)});
  return defaults;
}

}  // namespace diptych
