// From a resolved run to pictures: one function per model family, found by name.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "lib/base/log.h"
#include "lib/config/run_config.h"
#include "lib/tensor/types.h"

namespace diptych {

struct Picture {
  Tensor rgb;              // uint8 [height, width, 3] on the CPU
  std::uint64_t seed = 0;  // 0 and noise_file set where the noise came from a file
  std::string latent_hash; // first 16 hex digits of the sha-256 of the float32 latent
};

struct Report {
  std::vector<std::pair<std::string, double>> seconds;  // per stage, in order
  double steps_per_second = 0;                          // denoise updates
  std::uint64_t peak_bytes = 0;                         // on the device
  std::string device, dtype, attention, weights_hash;   // what really ran
  std::int64_t updates = 0, forwards = 0;               // forwards: branch forwards of the backbone
};

struct Result {
  std::vector<Picture> pictures;
  Report report;
};

using Pipeline = Result (*)(const RunConfig& config, Log& log, Progress& progress);
// Throws InputError for an unknown family; lists the known ones.
Pipeline find_pipeline(std::string_view family);

}  // namespace diptych
