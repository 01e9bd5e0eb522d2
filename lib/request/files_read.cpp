#include "lib/request/files_read.h"

#include "lib/config/family_fields.h"
#include "lib/request/enhanced_prompt.h"

namespace diptych {
namespace {

namespace fs = std::filesystem;

bool same_file(const fs::path& a, const fs::path& b) {
  std::error_code ignored;
  return fs::equivalent(a, b, ignored);
}

// What a checkpoint may be read from; pictures and texts beside it are not.
bool may_be_read(const fs::path& file) {
  return file.extension() == ".safetensors" || file.filename() == "merges.txt" ||
         (file.extension() == ".json" && file.filename() != kCalibrationName);
}

bool lies_in(const fs::path& folder, const fs::path& file) {
  std::error_code error;
  if (folder.empty()) return false;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end;
       entry.increment(error)) {
    if (may_be_read(entry->path()) && same_file(file, entry->path())) return true;
  }
  return false;
}

// The value of a field of paths.
fs::path own_path(const RunConfig& run, std::string_view name) {
  Options options;
  options.run = run;
  const auto fields = fields_of(options);
  return value_text(fields[field_index(name, fields)], options);
}

// All that the run loads.
std::vector<fs::path> model_folders(const RunConfig& run) {
  Options options;
  options.run = run;
  std::vector<fs::path> folders;
  for (const Field& field : fields_of(options)) {
    const auto* path = std::get_if<PathSlot>(&field.slot);
    if (path != nullptr && path->kind == PathKind::checkpoint)
      folders.emplace_back(value_text(field, options));
  }
  return folders;
}

}  // namespace

std::vector<FileRead> files_read(const RunConfig& run) {
  std::vector<FileRead> files;
  const auto add = [&](const fs::path& file, std::string_view role) {
    if (!file.empty()) files.push_back({file, role});
  };
  for (const InputItem& item : run.inputs) {
    add(item.file(), item.is_video() ? "an input video" : "an input picture");
    add(item.text_file, "the file of a prompt");
  }
  add(run.negative_file, "the file of the negative prompt");
  add(run.noise, "the noise");
  add(run.cache_calibration, "the calibration");
  if (run.family != nullptr && !run.family->prompt_file.empty())
    add(own_path(run, run.family->prompt_file), kMessagesFile);
  Options options;
  options.run = run;
  for (const Field& field : fields_of(options)) {
    const auto* path = std::get_if<PathSlot>(&field.slot);
    if (path != nullptr && path->kind == PathKind::weights)
      add(path->at(options), "a file of weights");
    if (const auto* added = std::get_if<AddedWeightsSlot>(&field.slot)) {
      for (const AddedWeights& each : added->at(options)) add(each.file, "a file of weights");
    }
  }
  return files;
}

std::optional<std::string_view> role_of_file(const RunConfig& run, const fs::path& file) {
  std::error_code error;
  if (file.empty() || !fs::exists(file, error)) return std::nullopt;
  for (const FileRead& read : files_read(run)) {
    if (same_file(file, read.file)) return read.role;
  }
  for (const fs::path& folder : model_folders(run)) {
    if (lies_in(folder, file)) return kModelFile;
  }
  return std::nullopt;
}

std::vector<FileRead> files_read(const Options& options) {
  std::vector<FileRead> files = files_read(options.run);
  if (enhances(options) && !options.enhance.instructions.empty())
    files.push_back({options.enhance.instructions, "the instructions of the enhancer"});
  return files;
}

std::optional<std::string_view> role_of_file(const Options& options, const fs::path& file) {
  if (const auto role = role_of_file(options.run, file)) return role;
  std::error_code error;
  if (!enhances(options) || file.empty() || !fs::exists(file, error)) return std::nullopt;
  for (const FileRead& read : files_read(options)) {
    if (same_file(file, read.file)) return read.role;
  }
  for (const fs::path& folder : {options.enhance.model, options.enhance.drafter}) {
    if (lies_in(folder, file)) return kModelFile;
  }
  return std::nullopt;
}

namespace {

void refuse_role(const std::optional<std::string_view>& role, const fs::path& file,
                 const Subject& subject) {
  if (role) throw subject.error("{}: is {}; expected another name", file.string(), *role);
}

}  // namespace

void check_not_an_input(const RunConfig& run, const fs::path& file, const Subject& subject) {
  refuse_role(role_of_file(run, file), file, subject);
}

void check_not_an_input(const Options& options, const fs::path& file, const Subject& subject) {
  refuse_role(role_of_file(options, file), file, subject);
}

void check_not_inputs(const Options& options, std::span<const FileWritten> files) {
  for (const auto& [file, setting] : files) check_not_an_input(options, file, setting);
}

}  // namespace diptych
