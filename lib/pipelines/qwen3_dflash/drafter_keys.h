// Drafters that this version does not have, told by their config.json.
#pragma once

#include <filesystem>

namespace diptych {

// Throws InputError naming the key for a drafter of another kind: a later DFlash, one of EAGLE's or
// of the speculators format.
void require_dflash_keys(const std::filesystem::path& config);

}  // namespace diptych
