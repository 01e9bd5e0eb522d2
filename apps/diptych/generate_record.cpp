#include "apps/diptych/generate_record.h"

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
    const bool aside = field.name == "output" || field.name == "progress" ||
                       field.name == "trace" || field.name == "trace_filter";
    if (aside) continue;
    const auto* path = std::get_if<PathSlot>(&field.slot);
    Options copy = options;
    json[std::string(field.name)] =
        path == nullptr ? value_json(field, options) : Json(last_name(path->at(copy)));
  }
  return json;
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
  return {{"schema", "diptych.generate"},
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
          {"requested", requested_json(options)}};
}

// "PROMPT\nSteps: 50, ...", as github.com/AUTOMATIC1111/stable-diffusion-webui writes it.
std::string parameters_text(const Options& options, const Picture& picture, const Report& report) {
  const SamplingConfig& sampling = options.run.sampling;
  std::string text = fmt::format(
      "{}\nSteps: {}, Sampler: Euler, CFG scale: {}, Image CFG scale: {}, Seed: {}, Size: {}x{}",
      options.run.prompt, sampling.steps, sampling.cfg_text_scale, sampling.cfg_img_scale,
      picture.seed, sampling.width, sampling.height);
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
  std::string line = fmt::format("{} picture{}: ", count, count == 1 ? "" : "s");
  for (const auto& [stage, seconds] : report.seconds) {
    line += fmt::format("{} {:.2f}s, ", stage, seconds);
  }
  line += fmt::format("{:.2f} it/s, peak {:.2f} GiB", report.steps_per_second,
                      static_cast<double>(report.peak_bytes) / kGib);
  for (const std::string& hash : report.latent_hashes) line += fmt::format(", latent {}", hash);
  return line;
}

}  // namespace diptych
