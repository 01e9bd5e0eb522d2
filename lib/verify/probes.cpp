#include "lib/verify/probes.h"

#include <algorithm>
#include <charconv>
#include <cstdlib>

#include "lib/base/error.h"

namespace diptych {
namespace {

// Reads a probe's text from left to right; every step that does not match ends in one InputError.
class ProbeText {
 public:
  explicit ProbeText(std::string_view text) : text_(text), rest_(text) {}

  bool accept(std::string_view token) {
    skip_blanks();
    if (!rest_.starts_with(token)) return false;
    rest_.remove_prefix(token.size());
    return true;
  }
  void expect(std::string_view token) {
    if (!accept(token)) fail(fmt::format("'{}'", token));
  }
  std::int64_t number(std::string_view what, std::int64_t largest) {
    skip_blanks();
    std::int64_t value = -1;
    const auto [end, error] = std::from_chars(rest_.data(), rest_.data() + rest_.size(), value);
    if (error != std::errc() || value < 0 || value > largest) {
      fail(fmt::format("{} from 0 to {}", what, largest));
    }
    rest_.remove_prefix(static_cast<std::size_t>(end - rest_.data()));
    return value;
  }
  void expect_end() {
    skip_blanks();
    if (!rest_.empty()) fail("the end");
  }

 private:
  void skip_blanks() { rest_.remove_prefix(std::min(rest_.find_first_not_of(' '), rest_.size())); }
  [[noreturn]] void fail(std::string_view wanted) const {
    throw InputError(
        "probe '{}': expected {} at character {}; a probe is [FRAME:]X,Y=R,G,B or "
        "[FRAME:]X,Y=R,G,B+-TOL",
        text_, wanted, text_.size() - rest_.size() + 1);
  }
  std::string_view text_, rest_;
};

// pixels: contiguous, on the CPU.
ProbeResult evaluate(const Probe& probe, const Tensor& pixels) {
  if (probe.x < 0 || probe.y < 0 || probe.x >= pixels.size(1) || probe.y >= pixels.size(0)) {
    throw InputError("probe ({},{}): outside the picture, expected X below {} and Y below {}",
                     probe.x, probe.y, pixels.size(1), pixels.size(0));
  }
  const auto* data = pixels.const_data_ptr<std::uint8_t>();
  ProbeResult result;
  result.probe = probe;
  for (std::size_t c = 0; c < 3; ++c) {
    result.found[c] = data[(probe.y * pixels.size(1) + probe.x) * 3 + static_cast<std::int64_t>(c)];
    result.difference = std::max(result.difference, std::abs(result.found[c] - probe.rgb[c]));
  }
  result.pass = result.difference <= probe.tolerance;
  return result;
}

}  // namespace

Probe parse_probe(std::string_view text, int default_tolerance) {
  constexpr std::int64_t kLargestCoordinate = 1'000'000, kLargestFrame = 1'000'000'000;
  ProbeText in(text);
  Probe probe;
  probe.tolerance = default_tolerance;
  if (text.find(':') != text.npos) {
    probe.frame = in.number("FRAME", kLargestFrame);
    in.expect(":");
  }
  const bool place_in_brackets = in.accept("(");
  probe.x = in.number("X", kLargestCoordinate);
  in.expect(",");
  probe.y = in.number("Y", kLargestCoordinate);
  if (place_in_brackets) in.expect(")");
  in.expect("=");
  const bool colour_in_brackets = in.accept("(");
  for (std::size_t c = 0; c < 3; ++c) {
    if (c > 0) in.expect(",");
    probe.rgb[c] = static_cast<int>(in.number("a colour level", 255));
  }
  if (colour_in_brackets) in.expect(")");
  if (in.accept("+-") || in.accept("\u00b1")) {
    probe.tolerance = static_cast<int>(in.number("a tolerance", 255));
  }
  in.expect_end();
  return probe;
}

std::vector<ProbeResult> evaluate_probes(std::span<const Probe> probes, const Tensor& rgb) {
  for (const Probe& probe : probes) {
    if (probe.frame) {
      throw InputError("probe {}:{},{}: names a frame, but this is a picture", *probe.frame,
                       probe.x, probe.y);
    }
  }
  ClipProbes all({probes.begin(), probes.end()});
  all.see(rgb);
  std::vector<ProbeResult> results = all.finish();
  for (ProbeResult& result : results) result.frame.reset();
  return results;
}

void ClipProbes::see(const Tensor& rgb) {
  TORCH_CHECK(rgb.dim() == 3 && rgb.size(2) == 3 && rgb.scalar_type() == at::kByte,
              "[probes] expected uint8 [height, width, 3], got ", rgb.sizes());
  const Tensor pixels = rgb.to(at::kCPU).contiguous();
  results_.resize(probes_.size());
  for (std::size_t i = 0; i < probes_.size(); ++i) {
    if (probes_[i].frame.value_or(frames_) != frames_) continue;
    ProbeResult result = evaluate(probes_[i], pixels);
    result.frame = frames_;
    if (!results_[i] || result.difference > results_[i]->difference) results_[i] = result;
  }
  ++frames_;
}

std::vector<ProbeResult> ClipProbes::finish() const {
  std::vector<ProbeResult> results;
  for (std::size_t i = 0; i < probes_.size(); ++i) {
    if (i >= results_.size() || !results_[i]) {
      throw InputError("probe {}:{},{}: behind the last of {} frames", probes_[i].frame.value_or(0),
                       probes_[i].x, probes_[i].y, frames_);
    }
    results.push_back(*results_[i]);
  }
  return results;
}

std::string describe(const ProbeResult& result) {
  const auto& [probe, found, gap, pass, frame] = result;
  return fmt::format("probe ({},{}){}: found ({},{},{}), expected ({},{},{}) +-{}, off by {}",
                     probe.x, probe.y, frame ? fmt::format(" of frame {}", *frame) : std::string(),
                     found[0], found[1], found[2], probe.rgb[0], probe.rgb[1], probe.rgb[2],
                     probe.tolerance, gap);
}

}  // namespace diptych
