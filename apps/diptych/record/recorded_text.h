// A text with its record as a JSON file: {"text": "...", "record": {...}}.
#pragma once

#include <filesystem>
#include <string>

#include "apps/diptych/record/result_record.h"

namespace diptych {

struct RecordedText {
  std::string text;
  PictureTexts texts;  // the record, as pictures have it
};

// With a line end. The report must have the hash of the weights.
std::string recorded_text_json(const MadeResult& made);
// The text as that file has it: what is not valid in UTF-8 is replaced.
std::string text_in_json(const MadeResult& made);

// Whether the file is named .json or begins as a JSON object does.
bool is_recorded_text(const std::filesystem::path& file);
// Throws InputError for another file, and one that is cut off.
RecordedText read_recorded_text(const std::filesystem::path& file);

}  // namespace diptych
