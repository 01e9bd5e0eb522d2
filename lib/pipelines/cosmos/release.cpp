#include "lib/pipelines/cosmos/release.h"

#include <string>
#include <string_view>

#include "lib/base/error.h"
#include "lib/base/json_file.h"

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

std::string class_name(const Json& index) {
  const auto name = index.find("_class_name");
  return name != index.end() && name->is_string() ? name->get<std::string>() : "";
}

// The pipeline sets what the file leaves out.
void require_value(const Json& json, const fs::path& file, const char* key, const Json& expected) {
  const auto found = json.find(key);
  if (found == json.end() || found->is_null() || *found == expected) return;
  throw InputError("{}: {}: found {}, expected {}", file.string(), key, shown_json(*found),
                   expected.dump());
}

}  // namespace

bool owns_cosmos(const fs::path& folder) {
  const fs::path file = folder / "model_index.json";
  if (!fs::exists(file)) return false;
  const std::string name = class_name(read_json_object(file));
  return name == kOfPictures || name == kOfClips;
}

CosmosIndex CosmosIndex::load(const fs::path& folder) {
  const fs::path file = folder / "model_index.json";
  const std::string name = class_name(read_json_object(file));
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

std::vector<OwnDefault> cosmos_defaults(const RunConfig&) {
  return {{"negative_prompt", std::string(kNegativePrompt)}};
}

}  // namespace diptych
