// The tree of a stage config before it is read: inheritance and `--set`.
#pragma once

#include <filesystem>
#include <span>
#include <string>

#include "lib/config/yaml_reader.h"

namespace diptych {

// `file` merged over its base_config, that over its own, and so on; base_config itself is gone.
// Throws InputError for a loop, stages without stage_id, or one twice.
YamlNode load_stage_tree(const std::filesystem::path& file);

// Sets the value at a path such as "stages.1.default_sampling_params.seed=7" (stages by stage_id;
// maps on the way are made). Throws InputError that begins with "--set".
void apply_override(YamlNode& tree, const std::string& key_and_value);

// Throws InputError unless `stages` is a list of maps with a stage_id each, none twice.
void require_stage_list(const YamlNode& stages);

// The stage_id of a stage's map. Throws InputError where it is missing or no whole number >= 0.
std::int64_t stage_id_of(const YamlNode& stage, std::string_view path);

}  // namespace diptych
