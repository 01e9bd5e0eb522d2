#include "lib/tuning/find.h"

#include <algorithm>

#include <fmt/format.h>

#include "lib/base/error.h"
#include "lib/base/text_file.h"

namespace diptych {
namespace {

namespace fs = std::filesystem;

// The text of such a file; nothing where nothing has that name.
std::optional<std::string> read_if_there(const fs::path& path) {
  constexpr std::uintmax_t kMostBytes = std::uintmax_t{4} << 20;
  std::error_code error;
  if (fs::symlink_status(path, error).type() == fs::file_type::not_found) return std::nullopt;
  const fs::file_status found = fs::status(path, error);  // of what a link leads to
  if (!fs::is_regular_file(found)) {
    const std::string what = error ? error.message() : "is no file";
    throw InputError("{}: {}; expected a file of diptych tune", path.string(),
                     fs::is_directory(found) ? "is a folder" : what);
  }
  if (fs::file_size(path, error) > kMostBytes) {
    throw InputError("{}: larger than {} MiB, which no file of diptych tune is", path.string(),
                     kMostBytes >> 20);
  }
  return read_text_file(path);
}

Tuning tuning_of(std::string_view text, std::string origin,
                 const std::optional<TunedDevice>& device) {
  auto file = std::make_shared<const TuningFile>(parse_tuning(text, origin, device));
  return {std::move(file), std::move(origin)};
}

// A table of another GPU with the same compute capability: what is fastest depends on the chip
// first.
Tuning find_relative(const TunedDevice& device) {
  for (const BuiltInTuning& table : built_in_tunings()) {
    Tuning tuning = tuning_of(table.text, fmt::format("built in {}", table.name), std::nullopt);
    const TunedDevice& other = tuning.file->device;
    if (other.major == device.major && other.minor == device.minor) return tuning;
  }
  return {};
}

}  // namespace

Tuning find_tuning(const fs::path& folder, const TunedDevice& device) {
  const std::string name = tuning_file_name(device);
  if (!folder.empty()) {
    const fs::path path = folder / name;
    if (const auto text = read_if_there(path)) return tuning_of(*text, path.string(), device);
  }
  const auto tables = built_in_tunings();
  const auto table = std::ranges::find(tables, name, &BuiltInTuning::name);
  if (table == tables.end()) return find_relative(device);
  return tuning_of(table->text, "built in " + name, device);
}

std::vector<std::string> tuning_notes(const Tuning& tuning, const fs::path& folder,
                                      const TunedDevice& device, std::string_view torch) {
  const fs::path named = folder / tuning_file_name(device);
  const std::string missing =
      folder.empty() ? "no tuning of " + device.name : fmt::format("{}: not there", named.string());
  if (tuning.file == nullptr) {
    return {fmt::format("{}: the usual kernels are taken; diptych tune measures which are fastest",
                        missing)};
  }
  if (tuning.file->device != device) {
    return {
        fmt::format("{}: that of {} is taken, which has the same compute capability; diptych tune "
                    "measures this GPU",
                    missing, tuning.file->device.name)};
  }
  std::vector<std::string> notes;
  if (!folder.empty() && tuning.origin != named.string())
    notes.push_back(fmt::format("{}: the built-in tuning is taken", missing));
  const auto measured = tuning.file->versions.find("torch");
  if (measured == tuning.file->versions.end() || measured->second != torch) {
    notes.push_back(
        fmt::format("{}: was not measured with libtorch {}; diptych tune measures again",
                    tuning.origin, torch));
  }
  return notes;
}

}  // namespace diptych
