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

}  // namespace diptych
