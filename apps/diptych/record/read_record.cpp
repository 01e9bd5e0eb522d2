#include "apps/diptych/record/read_record.h"

#include <algorithm>
#include <filesystem>
#include <utility>

#include <nlohmann/json.hpp>

#include "apps/diptych/record/result_record.h"
#include "apps/diptych/record/schema.h"
#include "lib/attention/attention.h"
#include "lib/base/error.h"
#include "lib/base/messages.h"
#include "lib/config/family_fields.h"
#include "lib/config/hub_cache.h"
#include "lib/config/resolve.h"
#include "lib/config/task.h"
#include "lib/config/words.h"
#include "lib/pipelines/registry.h"

namespace diptych {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::string_view kCudnnFp8 = "cudnn_fp8";  // attention in records of earlier builds

EnhancedPrompt read_enhanced(const Json& json) {
  return {json.at("prompt_given").get<std::string>(), json.at("enhancer").get<std::string>(),
          json.value("drafter", ""), json.at("instructions").get<std::string>(),
          json.at("max_tokens").get<std::int64_t>()};
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

bool is_file_name(const std::filesystem::path& path) {
  return path != ".." && path.filename() == path;
}

// Or the name of one on the hub. "." is in records of earlier versions.
bool is_model_name(const std::filesystem::path& path) {
  return path == "." || path == path_of_name(model_name(path));
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
      if (name != kSplitKv && name != kHopperFp8 && name != kCudnnFp8)
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
    check_names(resolved.options);
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
      const auto name = input.at(std::string(input_name(kind))).get<std::string>();
      require_name(input_name(kind), name, is_file_name(name));
      request.files.push_back({kind, name, input.at("sha256").get<std::string>(),
                               input.at("width").get<std::int64_t>(),
                               input.at("height").get<std::int64_t>()});
      run.inputs.push_back(InputItem::of_file(kind, request.files.back().name));
    }
    about(name_ + ": its record", [&] { settle_task(resolved); });
    request.options = std::move(resolved.options);
    return request;
  }

  // A record keeps names without their folders, so that one by somebody else makes a replay open
  // nothing but what is beside the file and here.
  void require_name(std::string_view key, const std::filesystem::path& path, bool is_name) const {
    if (path.empty() || is_name) return;
    throw InputError("{}: its record: {}: found {}, expected a name without a folder", name_, key,
                     in_quotes(path.string()));
  }

  void check_names(Options& options) const {
    for (const Field& field : fields_of(options)) {
      if (const auto* added = std::get_if<AddedWeightsSlot>(&field.slot)) {
        for (const AddedWeights& each : added->at(options))
          require_name(field.name, each.file, is_file_name(each.file));
      }
      const auto* slot = std::get_if<PathSlot>(&field.slot);
      if (slot == nullptr) continue;
      const std::filesystem::path& path = slot->at(options);
      require_name(field.name, path,
                   slot->kind == PathKind::checkpoint ? is_model_name(path) : is_file_name(path));
    }
  }

  std::vector<GivenValue> values(const Json& requested, std::span<const Field> fields) const {
    std::vector<GivenValue> values;
    for (const auto& [key, value] : requested.items()) {
      const auto field = std::ranges::find(fields, key, &Field::name);
      if (field == fields.end()) {
        throw InputError("{}: its record has {}, which this version ({}) does not know", name_,
                         in_quotes(key), DIPTYCH_VERSION);
      }
      if (field->scope == Scope::output) {  // a file that would be written
        throw InputError("{}: its record has {}, which no record holds; was it edited?", name_,
                         in_quotes(key));
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

const std::string& record_text(const PictureTexts& texts, const std::string& name) {
  const auto found = std::ranges::find(texts, kRecord, &PictureTexts::value_type::first);
  if (found != texts.end()) return found->second;
  throw InputError("{}: holds no record of diptych; was it edited, or made by another program?",
                   name);
}

ResultRecord read_record(const std::string& text, const std::string& name) {
  try {
    return RecordReader(Json::parse(text), name).read();
  } catch (const Json::exception&) {
    throw InputError("{}: its record is broken or not whole", name);
  }
}

}  // namespace diptych
