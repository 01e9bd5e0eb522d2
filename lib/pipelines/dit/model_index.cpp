#include "lib/pipelines/dit/model_index.h"

#include <fmt/format.h>

#include "lib/base/json_file.h"

namespace diptych {

namespace fs = std::filesystem;

std::string pipeline_class(const fs::path& folder) {
  const fs::path file = folder / kModelIndex;
  if (!fs::exists(file)) return "";
  const nlohmann::json index = read_json_object(file);
  const auto name = index.find("_class_name");
  return name != index.end() && name->is_string() ? name->get<std::string>() : "";
}

std::string foreign_pipeline(const fs::path& folder) {
  if (!fs::exists(folder / kModelIndex))
    return fs::exists(folder / "transformer") ? fmt::format("it has no {}", kModelIndex) : "";
  const std::string name = pipeline_class(folder);
  return name.empty() ? fmt::format("its {} has no _class_name", kModelIndex)
                      : fmt::format("its {} is of a {}", kModelIndex, name);
}

}  // namespace diptych
