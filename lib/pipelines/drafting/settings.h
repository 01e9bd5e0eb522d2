// What a request says of the drafter of its texts, and the fields of a family that has one.
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <vector>

#include "lib/config/family_config.h"

namespace diptych {

struct DraftSettings {
  std::filesystem::path draft_model;  // folder of the drafter, "" = none
  std::int64_t block_size = 0;        // tokens of a draft and the one before; 0: the drafter's
  bool drafts() const { return !draft_model.empty() && block_size != 1; }
};

inline constexpr std::int64_t kMostBlock = 1024;
// For FamilyConfig::drafting.
inline constexpr Drafting kDrafting = {"draft_model", {"block_size", "1"}};

// `Of`: where the options of a run hold the settings.
template <DraftSettings& (*Of)(Options&)>
constexpr std::array<Field, 2> draft_fields() {
  return {{
      {"draft_model", Scope::session, "--draft-model", "DIR",
       "folder of a block-diffusion drafter for the model, which drafts several tokens at once; "
       "the model accepts what it would have written, so a greedy text is the same",
       PathSlot{[](Options& options) -> std::filesystem::path& { return Of(options).draft_model; },
                PathKind::checkpoint},
       YamlPlace::top, "draft_model", "--drafter,--speculative-model"},
      {"block_size", Scope::generation, "--block-size", "N",
       "tokens that are checked at once: one that is known and N - 1 drafts; 0: as the drafter was "
       "trained; 1: without drafts",
       WholeSlot{[](Options& options) -> std::int64_t& { return Of(options).block_size; }, 0,
                 kMostBlock},
       YamlPlace::reading, "default_sampling_params.extra_args.block_size"},
  }};
}

// For FamilyConfig::idle, of a family that paints, too: what has no effect where nothing is
// written.
std::vector<OwnIdle> idle_drafts(const RunConfig& run);

}  // namespace diptych
