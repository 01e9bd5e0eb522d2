#include "apps/diptych/record/replay.h"

#include <algorithm>
#include <optional>
#include <span>
#include <utility>

#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "apps/diptych/record/read_record.h"
#include "apps/diptych/record/recorded_text.h"
#include "apps/diptych/record/replay_difference.h"
#include "apps/diptych/record/result_record.h"
#include "apps/diptych/result_files.h"
#include "lib/attention/attention.h"
#include "lib/base/atomic_file.h"
#include "lib/base/error.h"
#include "lib/base/json_file.h"
#include "lib/base/messages.h"
#include "lib/base/sha256.h"
#include "lib/base/temporary_folder.h"
#include "lib/base/text_file.h"
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
    runs_ = find_made_from(record_, settings_.file, settings_);
    for (RunConfig& run : runs_) {
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
      // A hash for each of several folders, the model's first.
      const auto first = [](const std::string& hashes) {
        return hashes.substr(0, hashes.find('-'));
      };
      const bool same_model = first(hash) == first(record_.weights_hash);
      throw InputError("{}: was made with weights {}, but those of {} are {}; {}", name_,
                       record_.weights_hash,
                       model.model.empty() ? "the dummy" : model.model.string(), hash,
                       same_model ? "the model's are the same, give others with --weights"
                       : settings_.model.empty() ? "give --model"
                                                 : "give another --model");
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
        return picture_difference(decode_picture(bytes_, name_),
                                  decode_picture(again_.bytes, name_), same_painting(), json);
      case MediaKind::clip:
        if (again_place_.empty()) {  // what reads clips reads files
          again_place_ = temporary_.emplace().path() / "again";
          write_again(again_place_);
        }
        return clip_difference(settings_.file, again_place_, same_painting(), json);
      default:
        return text_difference(text_, again_text_, json);
    }
  }

  // Before it was encoded. What the encoding loses, it has lost in both.
  bool same_painting() const {
    return !record_.pixels_hash.empty() && record_.pixels_hash == again_.pixels_hash;
  }

  const ReplaySettings& settings_;
  Log& log_;
  std::string name_;
  MediaKind kind_;                   // of the file
  std::vector<std::uint8_t> bytes_;  // none of a folder
  std::string text_, again_text_;    // of a file with a text, and what was written anew
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
