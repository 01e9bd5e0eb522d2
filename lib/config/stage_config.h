// Stage configs: which pipeline, where, and how each of its stages runs. Keys follow the stage
// files of vllm-omni where those have one; a key that is unknown, mistyped or cannot be honoured
// here is an error with its place.
//
// One stage (it reads and paints), or two: stage 0 reads (tokenise, prefill), stage 1 paints
// (denoise, decode).
#pragma once

#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "lib/config/fields.h"
#include "lib/config/yaml_reader.h"

namespace diptych {

// One value of a file, for one field.
struct Assignment {
  std::size_t field;   // index into all_fields()
  std::string text;    // as assign() takes it
  std::string origin;  // "bagel.yaml:12:5" or "--set"
  std::string where;   // the origin and the key, for messages
  bool from_set = false;
  bool of_edits = false;  // it holds for requests that edit, over the others
};

// The values of a tree that load_stage_tree() made. Throws InputError.
std::vector<Assignment> read_stage_tree(const YamlNode& tree);

// Reads `file` and what its `base_config` names: keys of the file replace those of its base, stages
// meet by stage_id, their default_sampling_params and edit_sampling_params merge deeply. Then each
// override "KEY=VALUE" edits the tree ("stages.1.default_sampling_params.seed=7"; stages by
// stage_id, VALUE is YAML), and the tree is read. Ranges are checked by assign(). Paths come out
// relative to the file that holds them. Throws InputError.
std::vector<Assignment> read_stage_config(const std::filesystem::path& file,
                                          std::span<const std::string> overrides);

}  // namespace diptych
