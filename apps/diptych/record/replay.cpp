#include "apps/diptych/record/replay.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <utility>

#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "apps/diptych/demo.h"
#include "apps/diptych/record/frames_gap.h"
#include "apps/diptych/record/recorded_text.h"
#include "apps/diptych/record/result_record.h"
#include "apps/diptych/result_files.h"
#include "lib/attention/attention.h"
#include "lib/base/atomic_file.h"
#include "lib/base/environment.h"
#include "lib/base/error.h"
#include "lib/base/json_file.h"
#include "lib/base/messages.h"
#include "lib/base/sha256.h"
#include "lib/base/temporary_folder.h"
#include "lib/base/text_file.h"
#include "lib/base/utf8.h"
#include "lib/config/hub_cache.h"
#include "lib/config/words.h"
#include "lib/media/image_read.h"
#include "lib/media/picture_write.h"
#include "lib/media/video/clip_read.h"
#include "lib/pipelines/registry.h"
#include "lib/request/files_read.h"
#include "lib/request/output_names.h"
#include "lib/runtime/runtime.h"

namespace diptych {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

std::vector<std::uint8_t> file_bytes(const fs::path& file) {
  const std::string text = read_text_file(file);
  return {text.begin(), text.end()};
}

std::span<const std::byte> bytes_of(const Tensor& pixels) {  // contiguous
  return {static_cast<const std::byte*>(pixels.const_data_ptr()), pixels.nbytes()};
}

// As InputRecord has it.
std::string input_hash(MediaKind kind, const fs::path& file) {
  if (kind == MediaKind::clip) return file_sha256(file).value_or("");
  return sha256_hex(bytes_of(read_image(file).contiguous()));
}

class Replay {
 public:
  Replay(const ReplaySettings& settings, Log& log)
      : settings_(settings),
        log_(log),
        name_(settings.file.string()),
        kind_(kind_of_file(settings.file)),
        bytes_(kind_ == MediaKind::text || fs::is_directory(settings.file)
                   ? std::vector<std::uint8_t>{}
                   : file_bytes(settings.file)),
        texts_(read_texts()),
        record_(read_record(record_text(texts_, name_), name_)) {
    const MediaKind makes = record_.together[record_.place].options.run.makes;
    if (kind_ != makes) throw InputError("{}: its record is of a {}", name_, noun(makes));
  }

  int run() {
    check_output();
    for (const ResultRecord::Request& request : record_.together)
      runs_.push_back(request.options.run);
    find_inputs();
    find_files();
    check_weights();
    const fs::path model = find_model();
    for (RunConfig& run : runs_) {
      run.model = model;
      require_calibration(run);
      run.tuned_config_dir = settings_.tuned_config_dir;
      run.cfg_mode = record_.cfg_mode;  // `auto` may choose otherwise this time
      check_not_an_input(run, settings_.output, Setting::of("output"));
    }
    settle_memory();
    settle_attention();
    if (record_.together.size() == 1) {
      runs_.front().sampling.seed = record_.seed;  // of this picture of its batch
      runs_.front().sampling.batch_count = 1;
    }
    paint();
    compare();
    if (!settings_.output.empty() && !is_folder(record_.encoding)) write_again(settings_.output);
    return is_identical() ? 0 : 1;
  }

 private:
  static constexpr const char* kWithWeights = "was made with the weights";

  static const char* noun(MediaKind kind) {
    switch (kind) {
      case MediaKind::picture:
        return "picture";
      case MediaKind::clip:
        return "video";
      default:
        return "text";
    }
  }

  static MediaKind kind_of_file(const fs::path& file) {
    if (is_recorded_text(file)) return MediaKind::text;
    const bool clip =
        fs::is_directory(file) || format_of_name(file) == PictureFormat::gif || is_clip(file);
    return clip ? MediaKind::clip : MediaKind::picture;
  }

  // The texts of the file; of one with a text this, too.
  PictureTexts read_texts() {
    if (kind_ == MediaKind::clip) return read_clip_texts(settings_.file);
    if (kind_ == MediaKind::picture) return decode_picture(bytes_, name_).image.text;
    RecordedText recorded = read_recorded_text(settings_.file);
    text_ = std::move(recorded.text);
    return std::move(recorded.texts);
  }

  bool is_text() const { return kind_ == MediaKind::text; }

  void check_output() const {
    const fs::path& output = settings_.output;
    if (output.empty()) return;
    const Setting setting = Setting::of("output");
    require_extension(output, result_extensions(kind_, format_of(record_.encoding)), setting);
    std::error_code ignored;
    if (fs::equivalent(output, settings_.file, ignored))
      throw InputError(setting, "{}: is the {} itself", output.string(), noun(kind_));
    require_writable(output, setting);
  }

  // A file of a recorded name: beside what is replayed, or here.
  std::vector<fs::path> places_of(const std::string& name) const {
    std::vector<fs::path> places = {settings_.file.parent_path() / name, name};
    std::erase_if(places, [](const fs::path& place) {
      std::error_code ignored;
      return place.empty() || !fs::exists(place, ignored);
    });
    return places;
  }

  // Pictures are known by their pixels and clips by their bytes, so their names and order need not
  // be the recorded ones.
  void find_inputs() {
    std::map<MediaKind, std::set<std::string>> recorded;  // hashes
    for (const ResultRecord::Request& request : record_.together) {
      for (const ResultRecord::Input& input : request.files)
        recorded[input.kind].insert(input.sha256);
    }
    std::map<std::string, fs::path> given;  // by hash
    for (const auto& [kind, files] : settings_.inputs) {
      for (const fs::path& file : files) {
        const std::string hash = input_hash(kind, file);
        if (!recorded[kind].contains(hash)) refuse_input(kind, file, recorded[kind].size());
        given[hash] = file;
      }
    }
    for (std::size_t i = 0; i < runs_.size(); ++i) {
      auto input = record_.together[i].files.begin();
      for (InputItem& item : runs_[i].inputs) {
        if (!item.is_text()) item = InputItem::of_file(item.kind(), find_input(*input++, given));
      }
    }
  }

  [[noreturn]] void refuse_input(MediaKind kind, const fs::path& file, std::size_t recorded) const {
    const bool clip = kind == MediaKind::clip;
    throw InputError(Setting::of(input_name(kind)),
                     "{}: {} of none of the {} that {} was made from", file.string(),
                     clip ? "is a copy" : "has the pixels",
                     counted(recorded, clip ? "video" : "picture"), name_);
  }

  fs::path find_input(const ResultRecord::Input& input,
                      const std::map<std::string, fs::path>& given) const {
    if (const auto found = given.find(input.sha256); found != given.end()) return found->second;
    std::string seen = "is not there";
    for (const fs::path& place : places_of(input.name)) {
      if (input_hash(input.kind, place) == input.sha256) return place;
      seen = fmt::format("is not the one ({} has other {})", place.string(),
                         input.kind == MediaKind::clip ? "content" : "pixels");
    }
    throw InputError("{}: was made from {}, {}x{}, sha256 {:.16}, which {}; give it with --{}",
                     name_, in_quotes(input.name), input.width, input.height, input.sha256, seen,
                     input_name(input.kind));
  }

  // A file that nothing was made from is a slip.
  void check_messages() const {
    std::set<std::string> recorded;  // hashes
    for (const ResultRecord::Request& request : record_.together) {
      if (request.messages_sha256) recorded.insert(*request.messages_sha256);
    }
    for (const fs::path& file : settings_.messages) {
      if (!recorded.contains(file_sha256(file).value_or("")))
        throw InputError(Setting::of("messages"),
                         "{}: is a copy of none of the {} that {} was made from", file.string(),
                         counted(recorded.size(), "conversation"), name_);
    }
  }

  void find_files() {
    check_messages();
    for (std::size_t i = 0; i < runs_.size(); ++i) {
      RunConfig& run = runs_[i];
      run.noise = find_file(run.noise, "began with the noise");
      run.cache_calibration = find_file(run.cache_calibration, "was painted with the calibration");
      find_weights(run);
      find_messages(run, record_.together[i].messages_sha256);
    }
  }

  void find_messages(RunConfig& run, const std::optional<std::string>& sha256) const {
    if (!sha256) return;
    Options options;
    options.run = run;
    const auto fields = fields_of(options);
    const std::string_view name = run.family->prompt_file;
    const auto* slot =
        name.empty() ? nullptr : std::get_if<PathSlot>(&fields[field_index(name, fields)].slot);
    if (slot == nullptr) throw InputError("{}: its record is broken", name_);
    slot->at(options) = find_conversation(slot->at(options).string(), *sha256);
    run = options.run;
  }

  // Known by its content, as a clip.
  fs::path find_conversation(const std::string& name, const std::string& sha256) const {
    if (sha256.empty())
      throw InputError("{}: was written from messages that were no file, and so were not kept",
                       name_);
    std::vector<fs::path> places = settings_.messages;
    const auto beside = places_of(name);
    places.insert(places.end(), beside.begin(), beside.end());
    const auto found = std::ranges::find_if(
        places, [&](const fs::path& place) { return file_sha256(place) == sha256; });
    if (found != places.end()) return *found;
    throw InputError(
        "{}: was written from the messages {}, sha256 {:.16}, which {}; give them with "
        "--messages",
        name_, in_quotes(name), sha256,
        places.empty()
            ? std::string("are neither beside it nor here")
            : fmt::format("are not the ones ({} has other content)", places.front().string()));
  }

  // Files of weights. Those that were added are known by their content, others by their name:
  // the hash of all weights says whether they are the same.
  void find_weights(RunConfig& run) {
    Options options;
    options.run = run;
    const std::vector<OwnIdle> idle =
        run.family->idle == nullptr ? std::vector<OwnIdle>() : run.family->idle(options);
    for (const Field& field : fields_of(options)) {
      const auto* path = std::get_if<PathSlot>(&field.slot);
      const bool second_model =
          path != nullptr && path->kind == PathKind::checkpoint && field.name != "model";
      const bool has_no_effect = std::ranges::find(idle, field.name, &OwnIdle::field) != idle.end();
      if (second_model && has_no_effect) {
        path->at(options).clear();
      } else if (second_model || (path != nullptr && path->kind == PathKind::weights)) {
        path->at(options) = find_weight_file(path->at(options));
      }
      if (const auto* added = std::get_if<AddedWeightsSlot>(&field.slot))
        find_added(added->at(options));
    }
    run = options.run;
  }

  // As of conversations.
  void check_weights() const {
    for (const fs::path& file : settings_.weights) {
      if (!used_weights_.contains(file))
        throw InputError(Setting::of("weights"), "{}: is none of the files that {} was made with",
                         file.string(), name_);
    }
  }

  fs::path find_weight_file(const fs::path& name) {
    const auto given = std::ranges::find_if(
        settings_.weights, [&](const fs::path& file) { return file.filename() == name; });
    if (given != settings_.weights.end()) {
      used_weights_.insert(*given);
      return *given;
    }
    for (const fs::path& demo : find_demos()) {  // it has its own beside it
      if (!name.empty() && places_of(name.string()).empty() &&
          fs::exists(demo.parent_path() / name))
        return demo.parent_path() / name;
    }
    return find_file(name, kWithWeights);
  }

  void find_added(std::vector<AddedWeights>& all) {
    if (all.size() != record_.added_weights.size())
      throw InputError("{}: its record is broken", name_);
    for (std::size_t i = 0; i < all.size(); ++i) {
      const std::string& sha256 = record_.added_weights[i].sha256;
      const std::string name = all[i].file.string();
      std::vector<fs::path> places = settings_.weights;
      const auto beside = places_of(name);
      places.insert(places.end(), beside.begin(), beside.end());
      const auto is_it = [&](const fs::path& place) { return file_sha256(place) == sha256; };
      const auto found = std::ranges::find_if(places, is_it);
      if (found == places.end()) {
        throw InputError("{}: {} {}, sha256 {:.16}, which {}; give it with --weights", name_,
                         kWithWeights, in_quotes(name), sha256,
                         beside.empty() ? std::string("is neither beside it nor here")
                                        : fmt::format("is not the one ({} has other content)",
                                                      beside.front().string()));
      }
      used_weights_.insert(*found);
      all[i].file = *found;
      all[i].part = record_.added_weights[i].part;
    }
  }

  fs::path find_file(const fs::path& name, const char* what) const {
    if (name.empty()) return {};
    const auto places = places_of(name.string());
    if (!places.empty()) return places.front();
    throw InputError("{}: {} {}, which is neither beside it nor here", name_, what,
                     in_quotes(name.string()));
  }

  void require_calibration(const RunConfig& run) const {
    const bool has_file = run.family->uses("cache_calibration");  // else its own coefficients
    if (is_text() || run.cache_mode != StepCacheMode::teacache || !run.cache_calibration.empty() ||
        !has_file)
      return;
    if (run.model.empty() || fs::exists(run.model / kCalibrationName)) return;
    throw InputError(
        "{}: was painted with the {} of its model's folder, which {} lacks; name the folder that "
        "has it with --model",
        name_, kCalibrationName, run.model.string());
  }

  fs::path find_model() const {
    if (!settings_.model.empty())
      return model_folder(settings_.model, process_environment(), Setting::of("model"));
    if (runs_.front().model.empty()) return {};  // dummy weights of the released sizes
    const fs::path recorded = model_name(runs_.front().model);
    const Family& family = find_family(runs_.front().pipeline);
    for (const fs::path& place : places_of(recorded.string())) {
      if (family.config().owns(place)) return place;  // any folder may have such a name
    }
    for (const fs::path& demo : find_demos()) {
      Sources sources;
      sources.demos = {demo};
      sources.families = all_family_configs();
      const fs::path model = resolve_sources(sources).options.run.model;
      if (model.filename() == recorded && family.config().owns(model)) return model;
    }
    const std::string place = fmt::format("{}: was made by the model", name_);
    const fs::path cached = model_folder(recorded, process_environment(), place);
    if (cached != recorded) return cached;
    throw InputError(
        "{}: was made by the model {}, which is neither beside it nor here; give "
        "it with --model",
        name_, in_quotes(recorded.string()));
  }

  DeviceChoice device() const { return settings_.device.value_or(runs_.front().device); }

  // What was done for want of memory and rounds otherwise is done again; what was asked for is of
  // the machine it ran on, and may not be had here.
  void settle_memory() {
    Log quiet(LogLevel::quiet);
    const bool on_gpu = resolve_device(device(), quiet).is_cuda();
    const bool waits = record_.offload == "all" && on_gpu;
    // A record without it was painted before there was another one. The CPU has no TF32.
    VaeDtype vae_dtype = parse_choice<VaeDtype>(record_.vae_dtype).value_or(VaeDtype::float32);
    if (vae_dtype == VaeDtype::tf32 && !on_gpu) vae_dtype = VaeDtype::float32;
    for (RunConfig& run : runs_) {
      run.max_vram = 0;
      run.offload = waits ? OffloadWish::layers : OffloadWish::automatic;
      if (record_.strips) run.vae_tiling = TilingWish::on;
      run.vae_dtype = vae_dtype;
    }
  }

  // A backend that was asked for by name may not be had here either; compare() tells what ran.
  void settle_attention() {
    Log quiet(LogLevel::quiet);
    const std::vector<AttentionInfo> here = list_attention(resolve_device(device(), quiet));
    for (RunConfig& run : runs_) {
      for (StageAttention* stage : {&run.read_attention, &run.paint_attention}) {
        for (std::string* name : {&stage->default_backend, &stage->self}) {
          const auto found = std::ranges::find(here, *name, &AttentionInfo::name);
          if (found == here.end() || !found->unavailable) continue;
          log_.warning_once(
              fmt::format("attention {}: {}; auto takes its place", *name, *found->unavailable));
          *name = "auto";
        }
      }
    }
  }

  void paint() {
    RunConfig model = runs_.front();
    model.device = device();
    // Sums of the CPU are split among its threads, and round accordingly.
    if (record_.threads > 0) at::set_num_threads(record_.threads);
    const auto session = open_session(model, log_);
    std::vector<std::unique_ptr<Job>> jobs;
    JobGroup group;
    for (const RunConfig& run : runs_) {
      jobs.push_back(session->make_job(run));
      jobs.back()->read_inputs();
      group.push_back(jobs.back().get());
    }
    Progress progress(log_, settings_.progress);
    session->load(std::span(&group, 1), progress);
    if (const std::string hash = session->weights_hash(); hash != record_.weights_hash) {
      throw InputError("{}: was made with weights {}, but those of {} are {}; {} --model", name_,
                       record_.weights_hash,
                       model.model.empty() ? "the dummy" : model.model.string(), hash,
                       settings_.model.empty() ? "give" : "give another");
    }
    Results results;
    results.result = [&](const Result& result, const Report& report) {
      results_.push_back(result);
      report_ = report;
    };
    session->run(group, progress, results);
    report_.weights_hash = record_.weights_hash;
    std::ranges::sort(results_, {}, &Result::request);
    check_noise();
    check_calibration();
    encode(progress);  // while there is the session, which decodes the frames of a clip
  }

  const Result& own() const { return results_.at(record_.place); }

  void check_noise() const {
    const bool from_file = !runs_[record_.place].noise.empty();
    if (from_file && own().noise_hash != record_.noise_hash) {
      throw InputError("{}: began with noise {}, but that of {} is {}", name_, record_.noise_hash,
                       runs_[record_.place].noise.string(), own().noise_hash);
    }
  }

  void check_calibration() const {
    if (report_.calibration_hash == record_.calibration_hash) return;
    throw InputError("{}: was painted with the calibration {}, the one that is here is {}", name_,
                     record_.calibration_hash, report_.calibration_hash);
  }

  void encode(Progress& progress) {
    if (results_.size() == 1) {
      results_.front().index = record_.index;
      results_.front().seed = record_.seed;
    }
    std::vector<Painted> painted;
    for (std::size_t i = 0; i < results_.size(); ++i)
      painted.push_back({&record_.together[i].options, &results_[i]});
    const MadeResult made{painted, record_.place, &report_};
    if (is_text()) again_text_ = text_in_json(made);
    if (!is_folder(record_.encoding)) {
      again_ = encode_result(made, record_.encoding, progress);
      return;
    }
    again_place_ =
        settings_.output.empty() ? temporary_.emplace().path() / "again.frames" : settings_.output;
    write_encoded(again_place_, made, record_.encoding, progress);
  }

  void write_again(const fs::path& place) const {
    AtomicFile file(place);
    file.write(again_.bytes.data(), again_.bytes.size());
    file.commit();
  }

  bool is_identical() const {
    if (is_text()) return again_text_ == text_;
    if (!is_folder(record_.encoding)) return again_.bytes == bytes_;
    return file_sha256(again_place_) == file_sha256(settings_.file);
  }

  // What ran otherwise than recorded, and explains a difference.
  std::vector<std::string> changes() const {
    std::vector<std::string> lines;
    const auto add = [&](const char* what, const std::string& then, const std::string& now) {
      if (then != now) lines.push_back(fmt::format("{} {}, recorded {}", what, now, then));
    };
    if (const auto* then = std::get_if<PictureEncoding>(&record_.encoding)) {
      const PictureFormat now = picture_format(bytes_).value();
      if (then->format != now)
        lines.push_back(fmt::format("the file is {}, recorded {}", facts_of(now).name,
                                    facts_of(then->format).name));
    }
    add("version", record_.version, DIPTYCH_VERSION);
    add("device", record_.device, report_.device);
    add("dtype", record_.dtype, report_.dtype);
    add("attention", record_.attention, report_.attention);
    add("tuning", record_.tuning, report_.tuning);
    add("VAE dtype", record_.vae_dtype, report_.vae_dtype);
    add("VAE tiling", record_.strips ? "on" : "off", report_.strips ? "on" : "off");
    add("offload", record_.offload, report_.offload);
    if (is_text()) add("finish reason", record_.finish_reason, own().text().finish_reason);
    return lines;
  }

  void compare() {
    const bool same = is_identical();
    Json json = {{"file", name_}, {"identical", same}};
    const std::string verdict = same ? describe_same() : describe_other(json);
    const std::vector<std::string> changed = changes();
    json["changes"] = changed;
    if (settings_.json) {
      fmt::print("{}\n", json.dump(2, ' ', false, Json::error_handler_t::replace));
      return;
    }
    fmt::print("{}: {}{}\n", printable(name_), verdict,
               changed.empty() ? "" : fmt::format(" ({})", fmt::join(changed, "; ")));
  }

  std::string describe_same() const {
    if (is_folder(record_.encoding)) return "identical";
    if (is_text()) return fmt::format("the same text, {} bytes", text_.size());
    return fmt::format("identical, {} bytes", bytes_.size());
  }

  std::string describe_other(Json& json) {
    switch (kind_) {
      case MediaKind::picture:
        return describe_difference(json);
      case MediaKind::clip:
        return describe_frames(json);
      default:
        return describe_texts(json);
    }
  }

  // Characters are counted from 1.
  std::string describe_texts(Json& json) const {
    std::size_t at = 0;
    std::int64_t number = 1;
    while (at < std::min(text_.size(), again_text_.size())) {
      const std::size_t length = utf8_at(text_, at).length;
      if (text_.compare(at, length, again_text_, at, length) != 0) break;
      at += length;
      ++number;
    }
    json["first_difference"] = number;
    const auto from_there = [at](const std::string& text) {
      return at == text.size() ? std::string("its end") : in_quotes(shortened(text.substr(at)));
    };
    return fmt::format("differs from character {} on: {}, now {}", number, from_there(text_),
                       from_there(again_text_));
  }

  // Before it was encoded. What the encoding loses, it has lost in both.
  bool same_painting() const {
    return !record_.pixels_hash.empty() && record_.pixels_hash == again_.pixels_hash;
  }

  static std::string not_the_file(bool same_texts) {
    return fmt::format("the same pixels, but not the same file: {}",
                       same_texts ? "it was compressed otherwise" : "its texts differ");
  }

  std::string describe_frames(Json& json) {
    if (again_place_.empty()) {  // what reads clips reads files
      again_place_ = temporary_.emplace().path() / "again";
      write_again(again_place_);
    }
    const FramesGap gap = compare_frames(settings_.file, again_place_);
    if (!gap.same_shape) return "differs: other sizes, or another number of frames";
    add_gap(json, gap);
    if (gap.pixels_differ == 0) return not_the_file(read_clip_texts(again_place_) == texts_);
    if (!same_painting()) return gap_text(gap);
    return fmt::format("the same video before it was encoded, but {} of {} frames differ",
                       gap.frames_differ, gap.frames);
  }

  std::string describe_difference(Json& json) const {
    const ReadPicture old = decode_picture(bytes_, name_);
    const ReadPicture again = decode_picture(again_.bytes, name_);
    const Tensor& then = old.image.rgb;
    const Tensor& now = again.image.rgb;
    if (then.sizes() != now.sizes())
      return fmt::format("differs: {}x{}, now {}x{}", then.size(1), then.size(0), now.size(1),
                         now.size(0));
    const Tensor gap = (then.to(at::kInt) - now.to(at::kInt)).abs().amax(2);  // [height, width]
    const auto pixels = gap.gt(0).sum().item<std::int64_t>();
    const auto level = gap.max().item<std::int64_t>();
    json["pixels"] = gap.numel();
    json["pixels_differ"] = pixels;
    json["max_level"] = level;
    if (pixels > 0 && same_painting())
      return fmt::format("the same picture before it was encoded, but {} of {} pixels differ",
                         pixels, gap.numel());
    if (pixels > 0) {
      return fmt::format("differs: {} of {} pixels, by at most {}", pixels, gap.numel(),
                         counted(static_cast<std::size_t>(level), "level"));
    }
    return not_the_file(again.image.text == texts_);
  }

  const ReplaySettings& settings_;
  Log& log_;
  std::string name_;
  MediaKind kind_;                   // of the file
  std::vector<std::uint8_t> bytes_;  // none of a folder
  std::string text_, again_text_;    // of a file with a text, and what was written anew
  std::set<fs::path> used_weights_;  // of those that were given
  PictureTexts texts_;
  ResultRecord record_;
  std::vector<RunConfig> runs_;  // record_.together with real paths
  std::vector<Result> results_;  // one per run
  Report report_;
  EncodedResult again_;                       // nothing of a folder
  std::optional<TemporaryFolder> temporary_;  // for what is only compared
  fs::path again_place_;                      // "" = it is in memory alone
};

}  // namespace

int replay_result(const ReplaySettings& settings, Log& log) {
  return Replay(settings, log).run();
}

}  // namespace diptych
