#include "apps/diptych/record/result_record.h"

#include <algorithm>
#include <array>
#include <cctype>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "lib/attention/attention.h"
#include "lib/base/error.h"
#include "lib/base/messages.h"
#include "lib/base/utf8.h"
#include "lib/config/hub_cache.h"
#include "lib/config/task.h"
#include "lib/config/words.h"
#include "lib/pipelines/registry.h"
#include "lib/request/files_read.h"

namespace diptych {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kSchema = "diptych.generate";
constexpr int kSchemaVersion = 1;
// Of what memory made the run do; a record without these did nothing of the kind.
constexpr const char* kTiled = "on";
constexpr const char* kNotOffloaded = "none";
constexpr const char* kPlain = "none";
constexpr const char* kUntuned = "default";
constexpr std::string_view kExact = name_of(VaeDtype::float32);  // of the autoencoder
constexpr const char* kParameters = "parameters";
constexpr std::string_view kSampler = "sampler";  // of a family that has several
constexpr const char* kMessages = "messages";     // a conversation among the inputs

std::string last_name(const std::filesystem::path& path) {
  const auto name = path.filename();
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

constexpr const char* kEnhanced = "enhanced";

// How the prompt came about; "inputs" has the one that was painted.
Json enhanced_json(const EnhancedPrompt& enhanced) {
  Json json = {{"prompt_given", enhanced.given}, {"enhancer", enhanced.enhancer}};
  if (!enhanced.drafter.empty()) json["drafter"] = enhanced.drafter;
  json["instructions"] = enhanced.instructions;
  json["max_tokens"] = enhanced.max_tokens;
  return json;
}

EnhancedPrompt read_enhanced(const Json& json) {
  return {json.at("prompt_given").get<std::string>(), json.at("enhancer").get<std::string>(),
          json.value("drafter", ""), json.at("instructions").get<std::string>(),
          json.at("max_tokens").get<std::int64_t>()};
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

// "Guidance scale 2" of "guidance_scale_2".
std::string label_of(std::string_view field) {
  std::string label(field);
  std::ranges::replace(label, '_', ' ');
  label.front() = static_cast<char>(std::toupper(static_cast<unsigned char>(label.front())));
  return label;
}

// What only the family has, where it is not at its default: ", Guidance scale 2: 3".
std::string own_parameters(const Options& options) {
  std::string text;
  if (options.run.family == nullptr) return text;
  const Options defaults = default_options(*options.run.family);
  for (const Field& field : fields_of(options).subspan(all_fields().size())) {
    const bool paints = field.scope == Scope::painting || field.scope == Scope::guidance ||
                        field.scope == Scope::step_cache || field.scope == Scope::generation;
    const std::string value = value_text(field, options);
    if (!paints || field.name == kSampler || value == value_text(field, defaults)) continue;
    // The reader of such texts cuts at commas.
    const bool quoted = value.find(',') != std::string::npos;
    text += fmt::format(", {}: {}", label_of(field.name), quoted ? Json(value).dump() : value);
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

// "PROMPT\nSteps: 50, ...", as github.com/AUTOMATIC1111/stable-diffusion-webui writes it.
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

// Nothing for what is no path.
std::optional<PathKind> path_kind(const Field& field) {
  const auto* path = std::get_if<PathSlot>(&field.slot);
  return path == nullptr ? std::nullopt : std::optional(path->kind);
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

// The value of a field as the text that assign() takes.
std::string text_of(const Json& value) {
  if (value.is_string()) return value.get<std::string>();
  if (!value.is_array()) return value.dump();
  std::string texts;
  for (const Json& part : value) {
    if (!texts.empty()) texts += part.is_string() ? ';' : ',';
    texts += text_of(part);
  }
  return texts;
}

class RecordReader {
 public:
  RecordReader(Json json, const std::string& name) : json_(std::move(json)), name_(name) {}

  ResultRecord read() const {
    check_schema();
    ResultRecord record;
    record.index = whole("index");
    record.seed = whole("seed");
    record.version = text("version");
    record.weights_hash = text("weights_hash");
    record.device = text("device");
    record.dtype = dtype();
    record.attention = attention();
    record.tuning = json_.value("tuning", kUntuned);
    record.threads = threads();
    if (json_.contains("added_weights")) {
      for (const Json& added : json_["added_weights"])
        record.added_weights.push_back(
            {added.at("sha256").get<std::string>(), added.at("part").get<std::string>()});
    }
    record.vae_dtype = vae_dtype();
    record.pixels_hash = json_.value("pixels_hash", "");
    record.strips = json_.value("vae_tiling", "") == kTiled;
    record.offload = json_.value("offload", kNotOffloaded);
    record.calibration_hash = json_.value("calibration_hash", "");
    const Json& requested = json_.at("requested");
    std::vector<ResultRecord::Request>& together = record.together;
    if (json_.contains("together")) {
      together = others(requested);
      record.place = json_["together"].at("place").get<std::size_t>();
    }
    if (record.place > together.size()) throw InputError("{}: its record is broken", name_);
    together.insert(together.begin() + static_cast<std::ptrdiff_t>(record.place),
                    request(requested, json_.at("inputs")));
    if (json_.contains(kEnhanced))
      together[record.place].options.enhanced = read_enhanced(json_[kEnhanced]);
    const MediaKind makes = together[record.place].options.run.makes;
    record.encoding = encoding(makes);
    if (makes == MediaKind::text) {
      record.finish_reason = text("finish_reason");
      return record;
    }
    record.cfg_mode = cfg_mode();
    record.noise_hash = json_.at("noise").at("hash").get<std::string>();
    return record;
  }

 private:
  std::uint64_t whole(const char* key) const {
    const Json& found = json_.at(key);
    if (found.is_number_unsigned()) return found.get<std::uint64_t>();
    throw InputError("{}: its record: {}: found {}, expected a whole number from 0", name_, key,
                     found.dump());
  }
  // A replay starts as many.
  int threads() const {
    constexpr std::int64_t kMost = 1024;
    const auto found = json_.value("threads", std::int64_t{0});
    if (found < 0 || found > kMost)
      throw InputError("{}: its record: threads: found {}, expected 0 to {}", name_, found, kMost);
    return static_cast<int>(found);
  }

  // What this version does not have cannot have painted it, and is not to be left out unsaid.
  std::string dtype() const {
    std::string found = text("dtype");
    Options checked;
    assign(all_fields()[field_index("dtype")], checked, found, name_ + ": its record: dtype");
    return found;
  }

  std::string vae_dtype() const {  // that ran, where `auto` chooses
    std::string found = json_.value("vae_dtype", std::string(kExact));
    const auto known = parse_choice<VaeDtype>(found);
    if (known && *known != VaeDtype::automatic) return found;
    throw InputError("{}: its record: vae_dtype: found '{}', expected float32, tf32 or bfloat16",
                     name_, shortened(found));
  }

  CfgMode cfg_mode() const {  // that ran, where `auto` chooses
    const std::string found = text("cfg_mode");
    if (const auto mode = parse_choice<CfgMode>(found)) return *mode;
    throw InputError("{}: its record: cfg_mode: found '{}', expected batched or sequential", name_,
                     shortened(found));
  }

  ResultEncoding encoding(MediaKind makes) const {
    const std::string where = name_ + ": its record";
    if (makes == MediaKind::text) return TextEncoding{.with_record = true};
    if (makes == MediaKind::clip)
      return read_clip_encoding(json_.at("encoding"), read_rate(json_.at("fps"), where), where);
    if (!json_.contains("encoding")) return PictureEncoding{};
    return read_picture_encoding(json_["encoding"], where);
  }

  std::string attention() const {
    std::string found = text("attention");  // "cudnn, splitkv": of different calls
    for (std::size_t at = 0; at < found.size();) {
      const std::size_t end = std::min(found.find(", ", at), found.size());
      const std::string_view name = std::string_view(found).substr(at, end - at);
      if (name != kSplitKv && name != kCudnnFp8)
        attention_name(name, name_ + ": its record: attention");
      at = end + 2;
    }
    return found;
  }

  std::string text(const char* key) const { return json_.at(key).get<std::string>(); }

  void check_schema() const {
    if (!json_.is_object() || json_.value("schema", "") != kSchema)
      throw InputError("{}: holds no record by diptych", name_);
    const int version = json_.at("schema_version").get<int>();
    if (version == kSchemaVersion) return;
    throw InputError("{}: its record has schema version {} (of diptych {}), this version reads {}",
                     name_, version, json_.value("version", "?"), kSchemaVersion);
  }

  // Those that were painted with it; `own` holds what they do not say.
  std::vector<ResultRecord::Request> others(const Json& own) const {
    std::vector<ResultRecord::Request> all;
    for (const Json& other : json_.at("together").at("others")) {
      Json requested = own;
      for (const auto& [field, value] : other.at("requested").items()) {
        requested[field] = value;
        if (value.is_null()) requested.erase(field);
      }
      all.push_back(request(requested, other.at("inputs")));
    }
    return all;
  }

  ResultRecord::Request request(const Json& requested, const Json& inputs) const {
    ResultRecord::Request request;
    if (!requested.is_object() || inputs.empty())  // a prompt may be empty, but is there
      throw InputError("{}: its record is broken", name_);
    const auto pipeline = requested.at("pipeline").get<std::string>();
    const Family* family = about(name_ + ": its record", [&] { return &find_family(pipeline); });
    Resolved resolved = without_sources(default_options(family->config()));
    give(resolved, values(requested, fields_of(resolved.options)));
    RunConfig& run = resolved.options.run;
    if (family->config().find_task(run.task) == nullptr)
      throw InputError("{}: its record is broken", name_);
    for (const Json& input : inputs) {
      if (input.contains("text")) {
        run.inputs.push_back({input["text"].get<std::string>(), {}});
        continue;
      }
      if (input.contains(kMessages)) {
        request.messages_sha256 = input.at("sha256").get<std::string>();
        continue;
      }
      const MediaKind kind = input.contains("video") ? MediaKind::clip : MediaKind::picture;
      request.files.push_back({kind, input.at(std::string(input_name(kind))).get<std::string>(),
                               input.at("sha256").get<std::string>(),
                               input.at("width").get<std::int64_t>(),
                               input.at("height").get<std::int64_t>()});
      run.inputs.push_back(InputItem::of_file(kind, request.files.back().name));
    }
    about(name_ + ": its record", [&] { settle_task(resolved); });
    request.options = std::move(resolved.options);
    return request;
  }

  std::vector<GivenValue> values(const Json& requested, std::span<const Field> fields) const {
    std::vector<GivenValue> values;
    for (const auto& [key, value] : requested.items()) {
      const auto field = std::ranges::find(fields, key, &Field::name);
      if (field == fields.end()) {
        throw InputError("{}: its record has {}, which this version ({}) does not know", name_,
                         in_quotes(key), DIPTYCH_VERSION);
      }
      const auto kind = path_kind(*field);
      std::string text = text_of(value);
      if ((kind || is_list(*field)) && text.empty()) continue;
      if (kind == PathKind::checkpoint) text = path_of_name(text).string();
      values.push_back(
          {static_cast<std::size_t>(field - fields.begin()), std::move(text), name_ + ": " + key});
    }
    return values;
  }

  Json json_;
  const std::string& name_;
};

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

const std::string& record_text(const PictureTexts& texts, const std::string& name) {
  const auto found = std::ranges::find(texts, kRecord, &PictureTexts::value_type::first);
  if (found != texts.end()) return found->second;
  throw InputError("{}: holds no record of diptych; was it edited, or made by another program?",
                   name);
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

ResultRecord read_record(const std::string& text, const std::string& name) {
  try {
    return RecordReader(Json::parse(text), name).read();
  } catch (const Json::exception&) {
    throw InputError("{}: its record is broken or not whole", name);
  }
}

std::string stage_times(const Report& report) {
  constexpr double kGib = 1024.0 * 1024.0 * 1024.0;
  std::string line;
  const auto add = [&](const std::string& part) { line += (line.empty() ? "" : ", ") + part; };
  constexpr double kShown = 0.005;  // less would be 0.00
  for (const auto& [stage, seconds] : report.seconds) {
    if (seconds >= kShown) add(fmt::format("{} {:.2f}s", stage, seconds));
  }
  if (report.steps_per_second > 0) add(fmt::format("{:.2f} it/s", report.steps_per_second));
  if (report.tokens_per_second > 0) add(fmt::format("{:.1f} tok/s", report.tokens_per_second));
  if (report.drafting) add(report.drafting->summary());
  if (report.peak_bytes > 0)
    add(fmt::format("peak {:.2f} GiB", static_cast<double>(report.peak_bytes) / kGib));
  return line;
}

std::string summary_line(const Report& report, MediaKind makes) {
  const std::string_view one = makes == MediaKind::clip ? "video" : "picture";
  const std::size_t count = report.latent_hashes.size();
  const std::string line = stage_times(report);
  return count > 0 ? fmt::format("{}: {}", counted(count, one), line) : line;
}

}  // namespace diptych
