// The record of a result, read back.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "apps/diptych/record/encoding.h"
#include "lib/config/fields.h"
#include "lib/media/image.h"
#include "lib/session/result.h"

namespace diptych {

struct ResultRecord {
  struct Input {  // one file that was read
    MediaKind kind = MediaKind::picture;
    std::string name, sha256;
    std::int64_t width = 0, height = 0;
  };
  struct Request {
    Options options;           // as recorded: of paths only the last name
    std::vector<Input> files;  // in the order of options.run.inputs
    // Of the file with a conversation, "" = it was no file that can be read again; nullopt: none.
    std::optional<std::string> messages_sha256;
  };
  std::vector<Request> together;  // with `place` its own
  std::size_t place = 0;
  std::uint64_t index = 0, seed = 0;  // of the result
  ResultEncoding encoding;            // of a PNG as of all of them
  std::string pixels_hash;            // "" = of the file itself, which loses nothing
  std::string version, weights_hash, device, dtype, attention, noise_hash, calibration_hash;
  std::vector<AddedWeightsRecord> added_weights;  // as Report
  CfgMode cfg_mode = CfgMode::batched;            // that ran
  std::string vae_dtype;                          // as Report
  std::string offload;                            // as Report
  std::string tuning;                             // as Report
  bool strips = false;
  int threads = 0;
  std::string finish_reason;  // of a text
};

// Throws InputError "<name>: ..." for a text that is no such record, one of another schema version,
// and one that names a file by its folder.
ResultRecord read_record(const std::string& text, const std::string& name);

// Of the texts of a file the one with the record; throws InputError where the file has none.
const std::string& record_text(const PictureTexts& texts, const std::string& name);

}  // namespace diptych
