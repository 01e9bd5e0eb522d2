#include "apps/diptych/record/made_from.h"

#include <algorithm>
#include <optional>
#include <set>
#include <span>
#include <utility>

#include <fmt/format.h>

#include "apps/diptych/demo.h"
#include "apps/diptych/record/read_record.h"
#include "lib/base/environment.h"
#include "lib/base/error.h"
#include "lib/base/messages.h"
#include "lib/base/sha256.h"
#include "lib/config/family_fields.h"
#include "lib/config/hub_cache.h"
#include "lib/config/resolve.h"
#include "lib/config/words.h"
#include "lib/media/image_read.h"
#include "lib/pipelines/registry.h"

namespace diptych {
namespace {

namespace fs = std::filesystem;

std::span<const std::byte> bytes_of(const Tensor& pixels) {  // contiguous
  return {static_cast<const std::byte*>(pixels.const_data_ptr()), pixels.nbytes()};
}

// As InputRecord has it.
std::string input_hash(MediaKind kind, const fs::path& file) {
  if (kind == MediaKind::clip) return file_sha256(file).value_or("");
  return sha256_hex(bytes_of(read_image(file).contiguous()));
}

class MadeFrom {
 public:
  MadeFrom(const ResultRecord& record, const fs::path& file, const GivenFiles& given)
      : record_(record), file_(file), given_(given), name_(file.string()) {}

  std::vector<RunConfig> find() {
    for (const ResultRecord::Request& request : record_.together)
      runs_.push_back(request.options.run);
    find_inputs();
    find_files();
    check_weights();
    const fs::path model = find_model();
    for (RunConfig& run : runs_) {
      run.model = model;
      require_calibration(run);
    }
    return std::move(runs_);
  }

 private:
  static constexpr const char* kWithWeights = "was made with the weights";

  // A file of a recorded name: beside what is replayed, or here.
  std::vector<fs::path> places_of(const std::string& name) const {
    std::vector<fs::path> places = {file_.parent_path() / name, name};
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
    for (const auto& [kind, files] : given_.inputs) {
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
    for (const fs::path& file : given_.messages) {
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
      run.noise =
          find_file(run.noise, i == record_.place
                                   ? "began with the noise"
                                   : "was painted together with one that began with the noise");
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
    std::vector<fs::path> places = given_.messages;
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
    for (const fs::path& file : given_.weights) {
      if (!used_weights_.contains(file))
        throw InputError(Setting::of("weights"), "{}: is none of the files that {} was made with",
                         file.string(), name_);
    }
  }

  fs::path find_weight_file(const fs::path& name) {
    const auto given = std::ranges::find_if(
        given_.weights, [&](const fs::path& file) { return file.filename() == name; });
    if (given != given_.weights.end()) {
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
      std::vector<fs::path> places = given_.weights;
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
    // Without a hash it went by published coefficients, or by none.
    if (record_.calibration_hash.empty() || !run.cache_calibration.empty()) return;
    if (run.model.empty() || fs::exists(run.model / kCalibrationName)) return;
    throw InputError(
        "{}: was painted with the {} of its model's folder, which {} lacks; name the folder that "
        "has it with --model",
        name_, kCalibrationName, run.model.string());
  }

  fs::path find_model() const {
    if (!given_.model.empty())
      return model_folder(given_.model, process_environment(), Setting::of("model"));
    if (runs_.front().model.empty()) return {};  // dummy weights of the released sizes
    const fs::path recorded = model_name(runs_.front().model);
    const Family& family = find_family(runs_.front().pipeline);
    std::vector<fs::path> places = places_of(recorded.string());
    // The result may lie in the model's own folder.
    for (const fs::path& folder : {file_.parent_path() / ".", fs::path(".")}) {
      if (model_name(folder) == recorded) places.push_back(folder);
    }
    for (const fs::path& place : places) {
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

  const ResultRecord& record_;
  const fs::path& file_;  // the result
  const GivenFiles& given_;
  std::string name_;
  std::set<fs::path> used_weights_;  // of those that were given
  std::vector<RunConfig> runs_;
};

}  // namespace

std::vector<RunConfig> find_made_from(const ResultRecord& record, const fs::path& file,
                                      const GivenFiles& given) {
  return MadeFrom(record, file, given).find();
}

}  // namespace diptych
