#include "lib/pipelines/cosmos/release.h"

#include <string>
#include <string_view>

#include <fmt/format.h>

#include "lib/base/error.h"
#include "lib/base/json_file.h"
#include "lib/pipelines/dit/model_index.h"

namespace diptych {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

constexpr std::string_view kOfPictures = "Cosmos2TextToImagePipeline",
                           kOfClips = "Cosmos2VideoToWorldPipeline";

// diffusers' (specs: cosmos.md 1.2).
constexpr std::string_view kNegativePrompt =
    "The video captures a series of frames showing ugly scenes, static with no motion, motion "
    "blur, over-saturation, shaky footage, low resolution, grainy texture, pixelated images, "
    "poorly lit areas, underexposed and overexposed scenes, poor color balance, washed out colors, "
    "choppy sequences, jerky movements, low frame rate, artifacting, color banding, unnatural "
    "transitions, outdated special effects, fake elements, unconvincing visuals, poorly edited "
    "content, jump cuts, visual noise, and flickering. Overall, the video is of poor quality.";

// The pipeline sets what the file leaves out.
void require_value(const Json& json, const fs::path& file, const char* key, const Json& expected) {
  const auto found = json.find(key);
  if (found == json.end() || found->is_null() || *found == expected) return;
  throw InputError("{}: {}: found {}, expected {}", file.string(), key, shown_json(*found),
                   expected.dump());
}

}  // namespace

bool owns_cosmos(const fs::path& folder) {
  const std::string name = pipeline_class(folder);
  return name == kOfPictures || name == kOfClips;
}

CosmosIndex CosmosIndex::load(const fs::path& folder) {
  const fs::path file = folder / kModelIndex;
  const std::string name = pipeline_class(folder);
  if (name != kOfPictures && name != kOfClips) {
    throw InputError("{}: _class_name: found '{}', expected {} or {}", file.string(), name,
                     kOfPictures, kOfClips);
  }
  const fs::path scheduler = folder / "scheduler" / "scheduler_config.json";
  const Json config = read_json_object(scheduler);
  require_value(config, scheduler, "use_karras_sigmas", true);
  require_value(config, scheduler, "sigma_max", 80.0);
  require_value(config, scheduler, "sigma_min", 0.002);
  require_value(config, scheduler, "sigma_data", 1.0);
  return {.continues = name == kOfClips};
}

std::vector<OwnDefault> cosmos_defaults(const RunConfig& run) {
  std::vector<OwnDefault> defaults = {{"negative_prompt", std::string(kNegativePrompt)}};
  if (run.model.empty() || !fs::exists(run.model / kModelIndex)) return defaults;
  const bool continues = CosmosIndex::load(run.model).continues;
  const Json config = read_json_object(run.model / "transformer" / "config.json");
  constexpr std::int64_t kSmall = 16;  // heads of the 2B models
  const auto heads = config.find("num_attention_heads");
  const bool large = heads != config.end() && heads->is_number_integer() && *heads > kSmall;
  defaults.push_back(
      {"cosmos_release", fmt::format("{}-{}", large ? "14b" : "2b", continues ? "v2w" : "t2i")});
  return defaults;
}

}  // namespace diptych
