// Colours that a finished picture must show at given places.
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lib/tensor/types.h"

namespace diptych {

constexpr int kDefaultProbeTolerance = 5;

using Rgb = std::array<int, 3>;  // 0 to 255 each

struct Probe {
  std::int64_t x = 0, y = 0;  // pixels from the left and from the top
  Rgb rgb{};
  int tolerance = kDefaultProbeTolerance;  // largest difference allowed in any channel, 0 to 255
};

// "X,Y=R,G,B", "(X,Y)=(R,G,B)", each with an optional "+-TOL" or "±TOL"; blanks are allowed between
// the parts. Throws InputError that quotes the text.
Probe parse_probe(std::string_view text, int default_tolerance = kDefaultProbeTolerance);

// A YAML file:
//   tolerance: 5                                      # optional: for probes without their own
//   probes:
//     - {x: 400, y: 700, rgb: [130, 96, 77], tolerance: 8}
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
};
// `rgb`: uint8 [height, width, 3]. Throws InputError for a probe outside the picture.
std::vector<ProbeResult> evaluate_probes(std::span<const Probe> probes, const Tensor& rgb);
std::string describe(const ProbeResult& result);  // "probe (4,7): found (1,2,3), expected ..."

}  // namespace diptych
