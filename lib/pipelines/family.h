// What the program asks of a family of models. Everything above lib/pipelines reaches a family
// through this record alone.
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "lib/base/log.h"
#include "lib/config/family_config.h"
#include "lib/config/run_config.h"
#include "lib/session/session.h"
#include "lib/tensor/trace.h"

namespace diptych {

// A recorded run in the golden layout: case.json, inputs.safetensors, expected.safetensors.
struct RecordedCase {
  std::filesystem::path folder;
  nlohmann::json description;  // case.json
  // Throws naming the file: Unsupported where it names none, InputError where that is no text.
  std::string task() const;
};

// Runs a recorded case again and records its tensors under the recording's names. Throws
// Unsupported for a task that this version does not have.
using CaseReplay = std::function<void(const RecordedCase& recorded, TraceSink& trace)>;

struct Family {
  const FamilyConfig& (*config)();  // its name, and what it declares to the configuration
  // Opens a model with the device, dtype, attention and checkpoint of `config`. Reads headers, no
  // weights. Throws InputError.
  std::unique_ptr<Session> (*open)(const RunConfig& config, Log& log);

  // The rest is optional: null where the family does not have it.

  // `config`: device, dtype, attention, CFG mode and kernels. The checkpoint is loaded when the
  // first case needs it and kept.
  CaseReplay (*replay)(const std::filesystem::path& checkpoint, const RunConfig& config,
                       Log& log) = nullptr;
  // What the folder lacks, holds beyond, or holds in another shape than its configs say, one line
  // each; empty for a whole one. Reads headers only. Throws InputError as loading does.
  std::vector<std::string> (*layout)(const std::filesystem::path& folder) = nullptr;
};

}  // namespace diptych
