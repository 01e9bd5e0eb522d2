#include "apps/diptych/record/result_record.h"

#include "apps/diptych/record/parameters_text.h"
#include "apps/diptych/record/schema.h"
#include "lib/config/family_fields.h"
#include "lib/config/hub_cache.h"
#include "lib/request/files_read.h"

namespace diptych {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kPlain = "none";
constexpr const char* kParameters = "parameters";

std::string last_name(const std::filesystem::path& path) {
  auto name = path.filename();
  std::error_code ignored;
  if (name == "." || name == "..") name = std::filesystem::canonical(path, ignored).filename();
  return (name.empty() ? path.parent_path().filename() : name).string();
}

// Texts as they are; files by name, hash and size; first a conversation in a file.
Json inputs_json(const Options& options, const Result& result) {
  Json list = Json::array();
  for (const FileRead& read : files_read(options.run)) {
    std::error_code ignored;
    if (read.role != kMessagesFile) continue;
    const bool is_file = std::filesystem::is_regular_file(read.file, ignored);  // else it is empty
    const std::string sha256 = is_file ? file_sha256(read.file).value_or("") : "";
    list.push_back({{kMessages, last_name(read.file)}, {"sha256", sha256}});
  }
  std::size_t file = 0;
  for (const InputItem& item : options.run.inputs) {
    if (item.is_text()) {
      list.push_back({{"text", item.text}});
      continue;
    }
    const InputRecord& record = result.inputs.at(file++);
    list.push_back({{std::string(input_name(item.kind())), last_name(item.file())},
                    {"sha256", record.sha256},
                    {"width", record.width},
                    {"height", record.height}});
  }
  return list;
}

// What was asked for and shapes the result.
Json requested_of(const Options& options) {
  Json json = requested_json(options);
  if (!options.run.answers()) return json;
  for (const Field& field : fields_of(options)) {
    if (is_of_painting(field)) json.erase(std::string(field.name));
  }
  return json;
}

// The others that were painted in the same forwards, which may round their products differently
// than a picture alone: what they asked for that this one did not.
Json together_json(std::span<const Painted> together, std::size_t place) {
  const Json own = requested_of(*together[place].options);
  Json others = Json::array();
  for (std::size_t i = 0; i < together.size(); ++i) {
    if (i == place) continue;
    const Json its = requested_of(*together[i].options);
    Json different = Json::object();
    for (const auto& [name, value] : its.items()) {
      if (!own.contains(name) || own[name] != value) different[name] = value;
    }
    for (const auto& [name, value] : own.items()) {
      if (!its.contains(name)) different[name] = nullptr;
    }
    others.push_back({{"requested", std::move(different)},
                      {"inputs", inputs_json(*together[i].options, *together[i].result)}});
  }
  return {{"place", place}, {"others", std::move(others)}};
}

// Without its seconds. A PSNR of equal pictures is infinite, which JSON has as null.
Json cache_report_json(const CacheReport& report) {
  return {{"latent_cosine", report.latent_cosine},
          {"latent_relative_l2", report.latent_relative_l2},
          {"ssim", report.ssim ? Json(*report.ssim) : Json()},
          {"psnr", report.psnr},
          {"forwards", report.forwards},
          {"uncached_forwards", report.uncached_forwards}};
}

// The files of the request, in their order, and what became of them.
Json added_weights_json(const Options& options, const Report& report) {
  Json list = Json::array();
  for (const Field& field : fields_of(options)) {
    const auto* slot = std::get_if<AddedWeightsSlot>(&field.slot);
    if (slot == nullptr) continue;
    Options copy = options;
    for (const AddedWeights& added : slot->at(copy)) {
      const AddedWeightsRecord& record = report.added_weights.at(list.size());
      list.push_back({{"file", last_name(added.file)},
                      {"sha256", record.sha256},
                      {"part", record.part},
                      {"scale", added.scale}});
    }
  }
  return list;
}

// How the prompt came about; "inputs" has the one that was painted.
Json enhanced_json(const EnhancedPrompt& enhanced) {
  Json json = {{"prompt_given", enhanced.given}, {"enhancer", enhanced.enhancer}};
  if (!enhanced.drafter.empty()) json["drafter"] = enhanced.drafter;
  json["instructions"] = enhanced.instructions;
  json["max_tokens"] = enhanced.max_tokens;
  return json;
}

// What a painted result began with and came to.
void add_painted(Json& json, const Options& options, const Result& result) {
  const bool from_file = !options.run.noise.empty();
  Json noise = {{"source", from_file ? "file" : "torch CPU mt19937, float32"}};
  if (from_file) {
    noise["file"] = last_name(options.run.noise);
  } else {
    noise["seed"] = result.seed;
  }
  noise["hash"] = result.noise_hash;
  json["noise"] = std::move(noise);
  json["latent_hash"] = result.latent_hash;
}

// How it was painted, or written.
void add_making(Json& json, const Options& options, const Result& result, const Report& report) {
  if (const auto* text = std::get_if<Text>(&result.media)) {
    json["tokens"] = text->tokens;
    json["finish_reason"] = text->finish_reason;
    return;
  }
  const ImageSize size = size_of(result.media);
  json["cfg_mode"] = report.cfg_mode;
  json["steps"] = options.run.sampling.steps;
  json["updates"] = report.updates;
  json["forwards"] = result.forwards;
  json["width"] = size.width;
  json["height"] = size.height;
}

// Of their paths the last names.
Json added_weights_names(const Field& field, const Options& options) {
  Options copy = options;
  Json list = Json::array();
  for (AddedWeights added : std::get<AddedWeightsSlot>(field.slot).at(copy)) {
    added.file = last_name(added.file);
    list.push_back(added_weights_text(added));
  }
  return list;
}

// Whether a picture's record says what was asked for; inputs and tuned kernels are there with their
// hashes instead.
bool is_recorded(const Field& field) {
  return field.scope != Scope::output && field.scope != Scope::display &&
         field.scope != Scope::parallel && field.scope != Scope::encoding &&
         field.scope != Scope::enhancing &&  // what came of it is in "enhanced"
         !std::holds_alternative<InputsSlot>(field.slot) && path_kind(field) != PathKind::tuning;
}

}  // namespace

Json record_json(const MadeResult& made, const ResultEncoding& encoding,
                 const std::string& pixels_hash) {
  const Options& options = made.options();
  const Result& result = made.result();
  const Report& report = *made.report;
  Json json = {{"schema", kSchema},
               {"schema_version", kSchemaVersion},
               {"version", DIPTYCH_VERSION},
               {"index", result.index},
               {"seed", result.seed}};
  if (!options.run.answers()) add_painted(json, options, result);
  json["pipeline"] = options.run.pipeline;
  json["weights_hash"] = report.weights_hash;
  json["device"] = report.device;
  json["dtype"] = report.dtype;
  json["attention"] = report.attention;
  add_making(json, options, result, report);
  json["inputs"] = inputs_json(options, result);
  if (const auto* clip = std::get_if<Clip>(&result.media)) {
    json["frames"] = clip->shape.frames;
    json["fps"] = rate_json(clip->shape.fps);
  }
  if (Json encoded = encoding_json(encoding); !encoded.is_null())
    json["encoding"] = std::move(encoded);
  if (!keeps_pixels(encoding)) json["pixels_hash"] = pixels_hash;
  if (!report.added_weights.empty()) json["added_weights"] = added_weights_json(options, report);
  if (report.quantization != kPlain) json["quantization"] = report.quantization;
  if (report.vae_dtype != kExact) json["vae_dtype"] = report.vae_dtype;
  if (report.tuning != kUntuned) json["tuning"] = report.tuning;
  if (report.threads > 0) json["threads"] = report.threads;
  if (report.strips) json["vae_tiling"] = kTiled;
  if (report.offload != kNotOffloaded) json["offload"] = report.offload;
  if (!report.calibration_hash.empty()) json["calibration_hash"] = report.calibration_hash;
  if (result.cache_report) json["cache_report"] = cache_report_json(*result.cache_report);
  if (options.run.think && !options.run.answers()) {
    json["plan"] = result.plan;
    json["finish_reason"] = result.plan_finish_reason;
  }
  if (options.enhanced) json[kEnhanced] = enhanced_json(*options.enhanced);
  json["requested"] = requested_of(options);
  if (made.together.size() > 1) json["together"] = together_json(made.together, made.place);
  return json;
}

Json requested_json(const Options& options) {
  Json json;
  const FamilyConfig* family = options.run.family;
  for (const Field& field : fields_of(options)) {
    if (!is_recorded(field) || (family != nullptr && !family->uses(field.name))) continue;
    if (is_of_input(field, options.run.sampling)) continue;
    const auto kind = path_kind(field);
    const std::filesystem::path path = kind ? value_text(field, options) : "";
    if (std::holds_alternative<AddedWeightsSlot>(field.slot)) {
      json[std::string(field.name)] = added_weights_names(field, options);
      continue;
    }
    json[std::string(field.name)] = !kind                          ? value_json(field, options)
                                    : kind == PathKind::checkpoint ? Json(model_name(path))
                                                                   : Json(last_name(path));
  }
  return json;
}

PictureTexts record_texts(const MadeResult& made, const ResultEncoding& encoding,
                          const std::string& pixels_hash) {
  // Names of files need not be UTF-8.
  const auto replace = Json::error_handler_t::replace;
  const Json record = record_json(made, encoding, pixels_hash);
  return {{kParameters, parameters_text(made.options(), made.result(), *made.report)},
          {kRecord, record.dump(-1, ' ', false, replace)}};
}

void PixelsHash::add(const Tensor& rgb) {
  const Tensor pixels = rgb.contiguous();
  hash_.update(std::as_bytes(std::span(pixels.const_data_ptr<std::uint8_t>(), pixels.nbytes())));
}

std::string PixelsHash::finish() {
  constexpr std::size_t kDigits = 16;
  return hash_.finish_hex().substr(0, kDigits);
}

std::string pixels_hash(const Tensor& rgb) {
  PixelsHash hash;
  hash.add(rgb);
  return hash.finish();
}

ImageSize size_of(const Media& media) {
  if (const auto* clip = std::get_if<Clip>(&media)) return {clip->shape.height, clip->shape.width};
  const Tensor& rgb = std::get<Picture>(media).rgb;
  return {rgb.size(0), rgb.size(1)};
}

}  // namespace diptych
