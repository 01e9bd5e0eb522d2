// The released models of Cosmos-Predict2: how a folder's config files name one, and what it was
// made for.
#pragma once

#include <filesystem>
#include <vector>

#include "lib/config/family_config.h"

namespace diptych {

// What model_index.json and scheduler_config.json say.
struct CosmosIndex {
  bool continues = false;  // Cosmos2VideoToWorldPipeline: goes on from given frames

  // Throws InputError naming file and key: for what cannot be read, and for noise levels of another
  // kind than the pipeline's.
  static CosmosIndex load(const std::filesystem::path& folder);
};

bool owns_cosmos(const std::filesystem::path& folder);

// Defaults beside those of the family and its tasks: those that every release shares, and of a
// folder the release that its sizes are of. Throws as CosmosIndex::load.
std::vector<OwnDefault> cosmos_defaults(const RunConfig& run);

}  // namespace diptych
