// Stage configs: which pipeline, where, and how each of its stages runs. Keys follow the stage
// files of vllm-omni where those have one; a key that is unknown, mistyped or cannot be honoured
// here is an error with its place.
//
// Which stages there are, the family says. A file has one of each kind in their order, or a single
// stage that does all: of BAGEL's, stage 0 reads (tokenise, prefill), stage 1 paints (denoise,
// decode). In front of them a stage with `model_stage: enhancer` may stand, which rewrites prompts.
#pragma once

#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "lib/config/family_config.h"
#include "lib/config/fields.h"
#include "lib/config/yaml_reader.h"

namespace diptych {

// One value of a file, for one field.
struct Assignment {
  std::size_t field;   // index into the family's fields
  std::string text;    // as assign() takes it
  std::string origin;  // "bagel.yaml:12:5" or "--set"
  std::string where;   // the origin and the key, for messages
  bool from_set = false;
  std::string_view task = {};  // it holds for this task alone, over the others; "" = for all
};

// The values of a tree that load_stage_config() made. Ranges are checked by assign(). Throws
// InputError.
std::vector<Assignment> read_stage_tree(const YamlNode& tree, const FamilyConfig& family);

// Reads `file` and what its `base_config` names: keys of the file replace those of its base, stages
// meet by stage_id, their default_sampling_params and the like merge deeply. Then each override
// "KEY=VALUE" edits the tree ("stages.1.default_sampling_params.seed=7"; stages by stage_id, VALUE
// is YAML). Paths come out relative to the file that holds them. Throws InputError.
YamlNode load_stage_config(const std::filesystem::path& file,
                           std::span<const std::string> overrides);

}  // namespace diptych
