#include "lib/tuning/find.h"

#include <algorithm>

#include "lib/base/error.h"
#include "lib/base/json_file.h"

namespace diptych {
namespace {

Tuning tuning_of(std::string_view text, std::string origin, const TunedDevice& device) {
  auto file = std::make_shared<const TuningFile>(parse_tuning(text, origin, device));
  return {std::move(file), std::move(origin)};
}

}  // namespace

Tuning find_tuning(const std::filesystem::path& folder, const TunedDevice& device) {
  const std::string name = tuning_file_name(device);
  if (!folder.empty()) {
    std::error_code error;
    if (!std::filesystem::is_directory(folder, error))
      throw InputError("{}: is no folder; expected one with a file of diptych tune",
                       folder.string());
    const std::filesystem::path path = folder / name;
    if (std::filesystem::exists(path, error))
      return tuning_of(read_text_file(path), path.string(), device);
  }
  const auto tables = built_in_tunings();
  const auto table = std::ranges::find(tables, name, &BuiltInTuning::name);
  if (table == tables.end()) return {};
  return tuning_of(table->text, "built in " + name, device);
}

}  // namespace diptych
