#include "apps/diptych/generate_record.h"

#include <algorithm>
#include <array>

#include <fmt/format.h>

#include "lib/base/utf8.h"

namespace diptych {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kSchemaVersion = 1;

std::string last_name(const std::filesystem::path& path) {
  const auto name = path.filename();
  return (name.empty() ? path.parent_path().filename() : name).string();
}

// Every field but those that do not shape the picture.
Json requested_json(const Options& options) {
  Json json;
  for (const Field& field : all_fields()) {
    static constexpr std::array<std::string_view, 6> kAside = {
        "output", "progress", "trace", "trace_filter", "think_output", "inputs"};
    if (std::ranges::find(kAside, field.name) != kAside.end()) continue;
    const bool size = field.name == "width" || field.name == "height";
    if (size && options.run.sampling.size_of_input) continue;
    const auto* path = std::get_if<PathSlot>(&field.slot);
    Options copy = options;
    json[std::string(field.name)] =
        path == nullptr ? value_json(field, options) : Json(last_name(path->at(copy)));
  }
  return json;
}

// Texts as they are; pictures by name, pixels' hash and size.
Json inputs_json(const Options& options, const Picture& picture) {
  Json list = Json::array();
  std::size_t image = 0;
  for (const InputItem& item : options.run.inputs) {
    if (!item.is_image()) {
      list.push_back({{"text", item.text}});
      continue;
    }
    const InputRecord& record = picture.inputs.at(image++);
    list.push_back({{"image", last_name(item.image)},
                    {"sha256", record.sha256},
                    {"width", record.width},
                    {"height", record.height}});
  }
  return list;
}

Json record_json(const Options& options, const Picture& picture, const Report& report) {
  const bool from_file = !options.run.noise.empty();
  Json noise = {{"source", from_file ? "file" : "torch CPU mt19937, float32"}};
  if (from_file) {
    noise["file"] = last_name(options.run.noise);
  } else {
    noise["seed"] = picture.seed;
  }
  noise["hash"] = picture.noise_hash;
  Json json = {{"schema", "diptych.generate"},
               {"schema_version", kSchemaVersion},
               {"version", DIPTYCH_VERSION},
               {"index", picture.index},
               {"seed", picture.seed},
               {"noise", std::move(noise)},
               {"latent_hash", picture.latent_hash},
               {"pipeline", options.run.pipeline},
               {"weights_hash", report.weights_hash},
               {"device", report.device},
               {"dtype", report.dtype},
               {"attention", report.attention},
               {"cfg_mode", options.run.cfg_mode},
               {"steps", options.run.sampling.steps},
               {"updates", report.updates},
               {"forwards", picture.forwards},
               {"width", picture.rgb.size(1)},
               {"height", picture.rgb.size(0)},
               {"inputs", inputs_json(options, picture)}};
  if (options.run.think) json["plan"] = picture.plan;
  json["requested"] = requested_json(options);
  return json;
}

// "PROMPT\nSteps: 50, ...", as github.com/AUTOMATIC1111/stable-diffusion-webui writes it.
std::string parameters_text(const Options& options, const Picture& picture, const Report& report) {
  const SamplingConfig& sampling = options.run.sampling;
  const std::string negative = options.run.negative_prompt.empty()
                                   ? ""
                                   : "\nNegative prompt: " + options.run.negative_prompt;
  std::string text = fmt::format(
      "{}{}\nSteps: {}, Sampler: Euler, CFG scale: {}, Image CFG scale: {}, Seed: {}, Size: {}x{}",
      options.run.prompt(), negative, sampling.steps, sampling.cfg_text_scale,
      sampling.cfg_img_scale, picture.seed, picture.rgb.size(1), picture.rgb.size(0));
  text += fmt::format(", CFG interval: {}-{}, CFG renorm: {} min {}, Shift: {}",
                      sampling.cfg_interval_low, sampling.cfg_interval_high,
                      sampling.cfg_renorm_type, sampling.cfg_renorm_min, sampling.timestep_shift);
  if (!options.run.model.empty())
    text += fmt::format(", Model: {}", replace_invalid_utf8(last_name(options.run.model)));
  if (!report.weights_hash.empty()) {
    text += fmt::format(", Model hash: {}", report.weights_hash.substr(0, 10));
  }
  return text + ", Version: diptych " DIPTYCH_VERSION;
}

}  // namespace

std::vector<std::pair<std::string, std::string>> picture_texts(const Options& options,
                                                               const Picture& picture,
                                                               const Report& report) {
  // Names of files need not be UTF-8.
  const auto replace = Json::error_handler_t::replace;
  const Json record = record_json(options, picture, report);
  return {{"parameters", parameters_text(options, picture, report)},
          {"diptych", record.dump(-1, ' ', false, replace)}};
}

std::string summary_line(const Report& report) {
  constexpr double kGib = 1024.0 * 1024.0 * 1024.0;
  const std::size_t count = report.latent_hashes.size();
  std::string line;
  if (count > 0) line = fmt::format("{} picture{}: ", count, count == 1 ? "" : "s");
  for (const auto& [stage, seconds] : report.seconds) {
    line += fmt::format("{} {:.2f}s, ", stage, seconds);
  }
  if (report.steps_per_second > 0) line += fmt::format("{:.2f} it/s, ", report.steps_per_second);
  if (report.tokens_per_second > 0) line += fmt::format("{:.1f} tok/s, ", report.tokens_per_second);
  if (report.peak_bytes > 0)
    line += fmt::format("peak {:.2f} GiB, ", static_cast<double>(report.peak_bytes) / kGib);
  for (const std::string& hash : report.latent_hashes) line += fmt::format("latent {}, ", hash);
  line.resize(line.size() - std::string_view(", ").size());
  return line;
}

}  // namespace diptych
