// `diptych inspect PIC.png --replay`: a picture's record is run again, and the result held to it.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "lib/base/log.h"

namespace diptych {

struct ReplaySettings {
  std::filesystem::path picture;
  std::filesystem::path model;                // "" = the folder of the recorded name, or the demo's
  std::filesystem::path output;               // of the picture painted anew, "" = it is not kept
  std::vector<std::filesystem::path> images;  // that the picture was made from, or some of them
  std::optional<DeviceChoice> device;         // nullopt: as recorded
  std::filesystem::path tuned_config_dir;     // "" = the built-in tuning
  ProgressStyle progress = ProgressStyle::automatic;
  bool json = false;
};

// Prints what differs. Returns 0 where the file comes out again byte by byte, 1 where it does not.
// Throws InputError for a picture without a record or with one of another schema version, and where
// weights, input pictures or start noise are not those of the record.
int replay_picture(const ReplaySettings& settings, Log& log);

}  // namespace diptych
