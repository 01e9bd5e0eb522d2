// What a picture says about itself: everything needed to paint it again.
#pragma once

#include <span>
#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "lib/config/resolve.h"
#include "lib/media/picture_write.h"
#include "lib/session/result.h"

namespace diptych {

struct Painted {
  const Options* options;
  const Result* result;  // a picture
};

// The texts of the picture at `place` of those that were painted in the same forwards (one,
// but for a batch): "parameters" in the form of the Stable Diffusion web UI, and "diptych", a JSON
// object with schema "diptych.generate" and its version. The same run gives the same bytes: no
// times, and of paths only the last name. Where the encoding loses something, the record says how
// the picture is encoded, and has the hash of its pixels before that.
PictureTexts picture_texts(std::span<const Painted> together, std::size_t place,
                           const Report& report, const PictureEncoding& encoding);
// The text with the record; throws InputError where the picture has none.
const std::string& record_text(const PictureTexts& texts, const std::string& name);

// First 16 hex digits of the sha-256 of uint8 [height, width, 3].
std::string pixels_hash(const Tensor& rgb);

// Every value of the request but those that do not shape the picture; of paths the last name, and
// no inputs.
nlohmann::ordered_json requested_json(const Options& options);

// A recorded picture, read back.
struct PictureRecord {
  struct Input {  // one picture that was read
    std::string name, sha256;
    std::int64_t width = 0, height = 0;
  };
  struct Request {
    Options options;            // as recorded: of paths only the last name
    std::vector<Input> images;  // in the order of options.run.inputs
  };
  std::vector<Request> together;  // with `place` its own
  std::size_t place = 0;
  std::uint64_t index = 0, seed = 0;  // of the picture
  PictureEncoding encoding;           // of a PNG as of all of them
  std::string pixels_hash;            // "" = of the file itself, which loses nothing
  std::string version, weights_hash, device, dtype, attention, noise_hash, calibration_hash;
  CfgMode cfg_mode = CfgMode::batched;  // that ran
  std::string vae_dtype;                // as Report
  std::string offload;                  // as Report
  std::string tuning;                   // as Report
  bool strips = false;
  int threads = 0;
};

// Throws InputError "<name>: ..." for a text that is no such record, or one of another schema
// version.
PictureRecord read_picture_record(const std::string& text, const std::string& name);

// "loading 0.31s, denoise 1.20s, 12.10 it/s, peak 0.00 GiB"; "" where nothing ran.
std::string stage_times(const Report& report);
// "2 pictures: loading 0.31s, denoise 1.20s; 12.10 it/s, peak 0.00 GiB"
std::string summary_line(const Report& report);

}  // namespace diptych
