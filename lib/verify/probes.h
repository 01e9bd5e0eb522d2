// Colours that a finished picture, or a frame of a clip, must show at given places.
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "lib/tensor/types.h"

namespace diptych {

constexpr int kDefaultProbeTolerance = 5;

using Rgb = std::array<int, 3>;  // 0 to 255 each

struct Probe {
  std::optional<std::int64_t> frame;  // of a clip, counted from 0; absent: every frame
  std::int64_t x = 0, y = 0;          // pixels from the left and from the top
  Rgb rgb{};
  int tolerance = kDefaultProbeTolerance;  // largest difference allowed in any channel, 0 to 255
};

// "X,Y=R,G,B", "(X,Y)=(R,G,B)", each with an optional "+-TOL" or "±TOL" behind it and an optional
// "FRAME:" in front; blanks are allowed between the parts. Throws InputError that quotes the text.
Probe parse_probe(std::string_view text, int default_tolerance = kDefaultProbeTolerance);

// A YAML file:
//   tolerance: 5                                      # optional: for probes without their own
//   probes:
//     - {x: 400, y: 700, rgb: [130, 96, 77], tolerance: 8, frame: 12}   # frame: of a clip
//     - "512,100=201,220,240+-5"
// `default_tolerance`, where given, takes the place of the file's. Throws InputError with
// file:line:column for unknown, duplicate, missing and mistyped keys.
std::vector<Probe> load_probes(const std::filesystem::path& path,
                               std::optional<int> default_tolerance = std::nullopt);

struct ProbeResult {
  Probe probe;
  Rgb found{};
  int difference = 0;  // the largest over the channels
  bool pass = false;
  std::optional<std::int64_t> frame{};  // of a clip: where that was found
};
// `rgb`: uint8 [height, width, 3]. Throws InputError for a probe outside the picture, and for one
// of a frame.
std::vector<ProbeResult> evaluate_probes(std::span<const Probe> probes, const Tensor& rgb);
// "probe (4,7): found (1,2,3), expected ..."; of a clip "probe (4,7) of frame 12: ..."
std::string describe(const ProbeResult& result);

// The probes of a clip, as its frames come. A probe without a frame must hold in all of them; its
// result is of the frame that is furthest off, the first of several.
class ClipProbes {
 public:
  explicit ClipProbes(std::vector<Probe> probes) : probes_(std::move(probes)) {}

  // `rgb`: as above, the next frame. Throws InputError for a probe outside it.
  void see(const Tensor& rgb);
  // One result per probe. Throws InputError for a probe of a frame that was not seen.
  std::vector<ProbeResult> finish() const;

 private:
  std::vector<Probe> probes_;
  std::vector<std::optional<ProbeResult>> results_;  // per probe
  std::int64_t frames_ = 0;
};

}  // namespace diptych
