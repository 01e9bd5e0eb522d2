// `diptych inspect PIC.png --replay`: the record of a picture, a clip or a text is run again, and
// the result held to it.
#pragma once

#include <filesystem>
#include <optional>

#include "apps/diptych/record/made_from.h"
#include "lib/base/choices.h"
#include "lib/base/log.h"
#include "lib/config/run_config.h"

namespace diptych {

struct ReplaySettings : GivenFiles {
  std::filesystem::path file;    // a picture, a clip, a folder of frames, or a text with a record
  std::filesystem::path output;  // of what is made anew, "" = it is not kept
  std::optional<DeviceChoice> device;      // nullopt: as recorded
  std::filesystem::path tuned_config_dir;  // "" = the built-in tuning
  ProgressStyle progress = ProgressStyle::automatic;
  bool json = false;
};

// Prints what differs. Returns 0 where the file comes out again byte by byte, and of a text where
// that does; else 1.
// Throws InputError for a file without a record or with one of another schema version, and where
// weights, input files or start noise are not those of the record.
int replay_result(const ReplaySettings& settings, Log& log);

}  // namespace diptych
