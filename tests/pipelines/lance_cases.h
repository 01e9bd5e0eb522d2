// What the official code read in the recorded Lance cases: requests, tokens, splits and positions.
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

#include "lib/pipelines/lance/layout.h"
#include "lib/pipelines/lance/prompt.h"
#include "lib/tensor/safetensors.h"
#include "lib/text/tokenizer.h"

namespace diptych::test {

inline const std::filesystem::path kLanceGoldens =
    std::filesystem::path(DIPTYCH_SOURCE_DIR) / "tests/goldens/lance";

// Folders with recorded cases: a choice in the repository always, and the full set where
// $DIPTYCH_GOLDENS or ../shared/goldens is.
std::vector<std::filesystem::path> lance_goldens();
// Folders of this name that hold a case.json: "09_preprocess".
std::vector<std::filesystem::path> lance_case_folders(std::string_view name);
nlohmann::json read_json(const std::filesystem::path& path);

// Of the released vocabulary's kind, with 622 tokens.
const Tokenizer& lance_tokenizer();

// One sequence, from a pipeline case or from the layouts of case 10.
struct RecordedSequence {
  std::string name;
  LanceTask task = LanceTask::t2i;
  LancePrompt prompt;
  std::vector<LanceGrid> grids;
  nlohmann::json entry;  // split_lens, attn_modes and more
  std::shared_ptr<const SafetensorsFile> file;
  std::string prefix;  // of the tensors of the layouts of case 10

  LanceLayout layout() const { return LanceLayout::of(prompt, grids, lance_tokenizer()); }
  bool has(std::string_view tensor) const;
  // "input_ids", "modality", "pos.cond", "video_grid_thw", ... -> the recorded tensor.
  Tensor tensor(std::string_view tensor) const;
};

std::vector<RecordedSequence> recorded_sequences();

}  // namespace diptych::test
