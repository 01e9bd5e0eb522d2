// model_index.json of a folder in the layout of diffusers: which pipeline it is of.
#pragma once

#include <filesystem>
#include <string>

namespace diptych {

inline constexpr const char* kModelIndex = "model_index.json";

// The name of the pipeline's class; "" where there is no such file, or it names none. Throws
// InputError for a file that cannot be read.
std::string pipeline_class(const std::filesystem::path& folder);

// FamilyConfig::describe_foreign of families whose folders have this layout.
std::string foreign_pipeline(const std::filesystem::path& folder);

}  // namespace diptych
