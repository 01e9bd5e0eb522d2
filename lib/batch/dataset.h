// Questions to measure a language model with, as the usual sets of them are published: JSON lines.
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "lib/base/choices.h"

namespace diptych {

// What a row holds, and how it becomes a prompt (as z-lab/dflash @44947fb, dflash/benchmark.py,
// asks; Alpaca as its first version did).
enum class DatasetKind {
  automatic,  // by the keys of the first row
  alpaca,     // instruction and input
  gsm8k,      // question; answer behind ####
  humaneval,  // prompt: a function to be written
  math500,    // problem; answer
  mbpp,       // prompt or text
  mt_bench,   // turns, or prompt as a list: asked one behind the other
  prompts,    // prompt or question, as it stands
};
template <>
inline constexpr std::array<std::string_view, 8> kChoiceNames<DatasetKind> = {
    "auto", "alpaca", "gsm8k", "humaneval", "math500", "mbpp", "mt-bench", "prompts"};

struct DatasetRow {
  std::vector<std::string> turns;  // what the user says, at least one text
  std::string answer;              // what is right; "" = not known
  std::string place = {};          // "gsm8k.jsonl:3"
};

struct Dataset {
  std::string name;  // of the file, without its extension
  DatasetKind kind = DatasetKind::prompts;
  std::vector<DatasetRow> rows;  // at least one
};

// Throws InputError "FILE:LINE: ..." for a row that cannot be read, or that is not of the kind.
Dataset read_dataset(const std::filesystem::path& file, DatasetKind kind);

}  // namespace diptych
