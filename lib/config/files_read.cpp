#include "lib/config/files_read.h"

#include "lib/base/error.h"

namespace diptych {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kOwnFile = "diptych_teacache.json";

bool same_file(const fs::path& a, const fs::path& b) {
  std::error_code ignored;
  return !b.empty() && fs::equivalent(a, b, ignored);
}

bool lies_in(const fs::path& folder, const fs::path& file) {
  std::error_code error;
  if (folder.empty()) return false;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end;
       entry.increment(error)) {
    if (entry->path().filename() != kOwnFile && same_file(file, entry->path())) return true;
  }
  return false;
}

}  // namespace

std::optional<std::string_view> role_of_file(const RunConfig& run, const fs::path& file) {
  std::error_code error;
  if (file.empty() || !fs::exists(file, error)) return std::nullopt;
  for (const InputItem& item : run.inputs) {
    if (same_file(file, item.image)) return "an input picture";
  }
  if (same_file(file, run.noise)) return "the noise";
  if (same_file(file, run.cache_calibration)) return "the calibration";
  if (lies_in(run.model, file)) return "a file of the model";
  return std::nullopt;
}

void spare_files_read(const RunConfig& run, const fs::path& file, std::string_view flag) {
  if (const auto role = role_of_file(run, file))
    throw InputError("{}: {}: is {}; expected another name", flag, file.string(), *role);
}

}  // namespace diptych
