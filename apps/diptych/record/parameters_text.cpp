#include "apps/diptych/record/parameters_text.h"

#include <algorithm>
#include <cctype>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "apps/diptych/record/result_record.h"
#include "lib/base/utf8.h"
#include "lib/config/family_fields.h"
#include "lib/config/hub_cache.h"

namespace diptych {
namespace {

constexpr std::string_view kSampler = "sampler";  // of a family that has several

// "Guidance scale 2" of "guidance_scale_2".
std::string label_of(std::string_view field) {
  std::string label(field);
  std::ranges::replace(label, '_', ' ');
  label.front() = static_cast<char>(std::toupper(static_cast<unsigned char>(label.front())));
  return label;
}

// Of a field of the family's own, where nothing is said.
std::string default_text(const Field& field, const FamilyConfig& family) {
  const auto own = std::ranges::find(family.defaults, field.name, &FieldDefault::field);
  return own == family.defaults.end() ? value_text(field, Options()) : std::string(own->text);
}

// What only the family has, where it is not at its default: ", Guidance scale 2: 3".
std::string own_parameters(const Options& options) {
  std::string text;
  if (options.run.family == nullptr) return text;
  for (const Field& field : fields_of(options).subspan(all_fields().size())) {
    const bool paints = field.scope == Scope::painting || field.scope == Scope::guidance ||
                        field.scope == Scope::step_cache || field.scope == Scope::generation;
    if (!paints || field.name == kSampler) continue;
    const std::string value = value_text(field, options);
    if (value == default_text(field, *options.run.family)) continue;
    // The reader of such texts cuts at commas.
    const bool quoted = value.find(',') != std::string::npos;
    text += fmt::format(", {}: {}", label_of(field.name),
                        quoted ? nlohmann::ordered_json(value).dump() : value);
  }
  return text;
}

std::string sampler_of(const Options& options) {
  const auto fields = fields_of(options);
  const auto own = std::ranges::find(fields, kSampler, &Field::name);
  return own == fields.end() ? "Euler" : value_text(*own, options);
}

std::string cache_parameters(const RunConfig& run) {
  if (run.cache_mode == StepCacheMode::none) return "";
  std::string text = fmt::format(", Step cache: {}", name_of(run.cache_mode));
  if (run.cache_mode == StepCacheMode::teacache)
    text += fmt::format(", Step cache threshold: {}", run.cache_threshold);
  return text;
}

// Guidance and schedule, as far as the family has them.
std::string schedule_parameters(const Options& options) {
  const SamplingConfig& sampling = options.run.sampling;
  const FamilyConfig* family = options.run.family;
  const auto uses = [&](std::string_view field) {
    return family == nullptr || family->uses(field);
  };
  std::string text;
  if (uses("cfg_interval"))
    text +=
        fmt::format(", CFG interval: {}-{}", sampling.cfg_interval_low, sampling.cfg_interval_high);
  if (uses("cfg_renorm_type"))
    text += fmt::format(", CFG renorm: {} min {}", name_of(sampling.cfg_renorm_type),
                        sampling.cfg_renorm_min);
  if (uses("timestep_shift")) text += fmt::format(", Shift: {}", sampling.timestep_shift);
  return text + own_parameters(options) + cache_parameters(options.run);
}

}  // namespace

std::string parameters_text(const Options& options, const Result& result, const Report& report) {
  const SamplingConfig& sampling = options.run.sampling;
  const ImageSize size = size_of(result.media);
  const std::string negative = options.run.negative_prompt.empty()
                                   ? ""
                                   : "\nNegative prompt: " + options.run.negative_prompt;
  const FamilyConfig* family = options.run.family;
  const bool has_image_scale = family == nullptr || family->uses("cfg_img_scale");
  std::string text = fmt::format(
      "{}{}\nSteps: {}, Sampler: {}, CFG scale: {}{}, Seed: {}, Size: {}x{}", options.run.prompt(),
      negative, sampling.steps, sampler_of(options), sampling.cfg_text_scale,
      has_image_scale ? fmt::format(", Image CFG scale: {}", sampling.cfg_img_scale) : "",
      result.seed, size.width, size.height);
  if (const auto* clip = std::get_if<Clip>(&result.media))
    text +=
        fmt::format(", Frames: {}, FPS: {}", clip->shape.frames, frame_rate_text(clip->shape.fps));
  text += schedule_parameters(options);
  if (!options.run.model.empty())
    text += fmt::format(", Model: {}", replace_invalid_utf8(model_name(options.run.model)));
  if (!report.weights_hash.empty()) {
    text += fmt::format(", Model hash: {}", report.weights_hash.substr(0, 10));
  }
  return text + ", Version: diptych " DIPTYCH_VERSION;
}

}  // namespace diptych
