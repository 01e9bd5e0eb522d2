// From a resolved run to pictures: one function per model family, found by name.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "lib/base/log.h"
#include "lib/config/run_config.h"
#include "lib/tensor/trace.h"
#include "lib/tensor/types.h"

namespace diptych {

struct Picture {
  Tensor rgb;                 // uint8 [height, width, 3] on the CPU
  std::uint64_t index = 0;    // 0 .. batch_count - 1
  std::uint64_t seed = 0;     // of the start noise, unless that came from a file
  std::string noise_hash;     // first 16 hex digits of the sha-256 of the float32 start noise
  std::string latent_hash;    // likewise of the final latent
  std::int64_t forwards = 0;  // branch forwards of the backbone
};

struct Report {
  std::vector<std::pair<std::string, double>> seconds;  // per stage, in order
  double steps_per_second = 0;                          // denoise updates
  std::uint64_t peak_bytes = 0;                         // most memory taken from the device
  std::string device, dtype, attention, weights_hash;   // what really ran
  std::int64_t updates = 0;                             // per picture
  std::vector<std::string> latent_hashes;               // per picture
};

// Called with each picture as soon as it is painted; seconds and peak_bytes are not final then.
using PictureFn = std::function<void(const Picture& picture, const Report& report)>;
using Pipeline = Report (*)(const RunConfig& config, Log& log, Progress& progress,
                            const PictureFn& picture);
// Throws InputError for an unknown family; lists the known ones.
Pipeline find_pipeline(std::string_view family);

// A recorded run in the golden layout: case.json, inputs.safetensors, expected.safetensors.
struct RecordedCase {
  std::filesystem::path folder;
  nlohmann::json description;  // case.json
  // Throws naming the file: Unsupported where it names none, InputError where that is no text.
  std::string task() const;
};

// Runs a recorded case again and records its tensors under the recording's names. Throws InputError
// for a task this version does not have.
using CaseReplay = std::function<void(const RecordedCase& recorded, TraceSink& trace)>;
// `config`: device, dtype, attention, CFG mode and kernels. The checkpoint is loaded when the first
// case needs it and kept.
using MakeCaseReplay = CaseReplay (*)(const std::filesystem::path& checkpoint,
                                      const RunConfig& config, Log& log);
MakeCaseReplay find_case_replay(std::string_view family);

// What a checkpoint folder lacks, holds beyond, or holds in another shape than its configs say, one
// line each; empty for a folder that is whole. Reads headers only. Throws InputError as loading
// does.
using LayoutCheck = std::vector<std::string> (*)(const std::filesystem::path& folder);
LayoutCheck find_layout_check(std::string_view family);

// The family whose checkpoint a folder holds: config.json's model_type, "bagel" where only its
// llm_config.json is there (its official code reads no other), "" for a folder of no known family.
std::string checkpoint_family(const std::filesystem::path& folder);

}  // namespace diptych
