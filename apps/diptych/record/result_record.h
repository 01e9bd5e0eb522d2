// What a result says about itself: everything needed to make it again.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "apps/diptych/record/encoding.h"
#include "lib/base/sha256.h"
#include "lib/config/resolve.h"
#include "lib/media/image.h"
#include "lib/session/result.h"

namespace diptych {

struct Painted {
  const Options* options;
  const Result* result;  // a picture, a clip or a text
};

// The result at `place` of those that were made in the same forwards (one, but for a batch).
struct MadeResult {
  std::span<const Painted> together;
  std::size_t place = 0;
  const Report* report = nullptr;
  const Options& options() const { return *together[place].options; }
  const Result& result() const { return *together[place].result; }
};

// A JSON object with schema "diptych.generate" and its version. The same run gives the same bytes:
// no times, and of paths only the last name. It says how the result is encoded and, where that
// loses something, has the hash of its pixels before that. Of a text the report must have the hash
// of the weights.
nlohmann::ordered_json record_json(const MadeResult& made, const ResultEncoding& encoding,
                                   const std::string& pixels_hash);

inline constexpr const char* kRecord = "diptych";  // among the texts of a file

// The texts of a picture or a clip: "parameters" in the form of the Stable Diffusion web UI, and
// the record.
PictureTexts record_texts(const MadeResult& made, const ResultEncoding& encoding,
                          const std::string& pixels_hash);
// The text with the record; throws InputError where the file has none.
const std::string& record_text(const PictureTexts& texts, const std::string& name);

// First 16 hex digits of the sha-256 of uint8 [height, width, 3], of a clip of all its frames in
// their order.
class PixelsHash {
 public:
  void add(const Tensor& rgb);
  std::string finish();  // once
 private:
  Sha256 hash_;
};
std::string pixels_hash(const Tensor& rgb);

// Of a picture or a clip.
ImageSize size_of(const Media& media);

// Every value of the request but those that do not shape the result; of paths the last name, and
// no inputs.
nlohmann::ordered_json requested_json(const Options& options);

// The record of a result, read back.
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

// Throws InputError "<name>: ..." for a text that is no such record, or one of another schema
// version.
ResultRecord read_record(const std::string& text, const std::string& name);

// "loading 0.31s, denoise 1.20s, 12.10 it/s, peak 0.00 GiB"; "" where nothing ran.
std::string stage_times(const Report& report);
// "2 pictures: loading 0.31s, denoise 1.20s; 12.10 it/s, peak 0.00 GiB"
std::string summary_line(const Report& report, MediaKind makes);

}  // namespace diptych
