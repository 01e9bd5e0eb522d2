#include <algorithm>
#include <optional>

#include <fmt/format.h>

#include "apps/diptych/compare/files.h"
#include "apps/diptych/compare/side_by_side.h"
#include "lib/base/messages.h"
#include "lib/media/video/clip_read.h"
#include "lib/media/video/clip_write.h"
#include "lib/media/video/contact_sheet.h"
#include "lib/verify/json.h"

namespace diptych {
namespace {

namespace fs = std::filesystem;

constexpr FrameRate kUnknownRate{24, 1};

std::string of_frame(const char* name, const Extreme& extreme, const char* unit) {
  return fmt::format("{}: mean {:.6g}{}, worst {:.6g}{} of frame {}", name, extreme.mean, unit,
                     extreme.worst, unit, extreme.frame);
}

void add_lines(CompareReport& report, const ClipMetrics& metrics) {
  const auto differ = std::ranges::count_if(
      metrics.frames, [](const ImageMetrics& frame) { return frame.difference.max_abs != 0; });
  const std::string frames = counted(metrics.frames.size(), "frame");
  if (differ == 0) {
    report.lines.push_back(fmt::format("{}, all equal", frames));
    return;
  }
  report.lines.push_back(fmt::format("{}, {} not equal", frames, differ));
  const ClipExtremes all = extremes_of(metrics);
  if (all.ssim) {
    report.lines.push_back(of_frame("ssim", *all.ssim, ""));
    report.lines.push_back(of_frame("ms-ssim", *all.ms_ssim, ""));
  } else {
    report.lines.push_back("ssim: none below 11x11 pixels");
  }
  report.lines.push_back(of_frame("psnr", all.psnr, " dB"));
  report.lines.push_back(of_frame("max abs", all.max_abs, ""));
}

// Writes the two side by side, as a clip.
class SideBySideClip {
 public:
  SideBySideClip(const fs::path& path, ClipFormat format, const ClipFacts& expected) : path_(path) {
    encoding_.format = format;
    encoding_.fps = expected.average_rate.value_or(kUnknownRate);
    const ClipFormatFacts& facts = facts_of(format);
    const double rate = encoding_.fps.value();
    if (!(rate >= kMinFrameRate && rate <= facts.max_rate))
      encoding_.fps = {rate < kMinFrameRate ? 1 : static_cast<std::int64_t>(facts.max_rate), 1};
  }

  void add(const Tensor& actual, const Tensor& expected) {
    Tensor frame = side_by_side(actual, expected);
    if (facts_of(encoding_.format).even_sides) frame = with_even_sides(frame);
    if (!writer_) writer_.emplace(path_, encoding_, ImageSize{frame.size(0), frame.size(1)});
    writer_->add(frame);
  }
  void finish() {
    if (writer_) writer_->finish({});
  }

 private:
  // The last line once more, where one is missing.
  static Tensor with_even_sides(Tensor frame) {
    for (const std::int64_t dim : {0, 1}) {
      const std::int64_t side = frame.size(dim);
      if (side % 2 != 0) frame = at::cat({frame, frame.narrow(dim, side - 1, 1)}, dim);
    }
    return frame;
  }

  fs::path path_;
  ClipEncoding encoding_;
  std::optional<ClipWriter> writer_;
};

// Some frames of both, one below the other.
void write_sheet(const fs::path& actual, const fs::path& expected, std::int64_t frames,
                 const fs::path& path) {
  constexpr std::int64_t kRows = 8;
  const std::vector<std::int64_t> shown = evenly_spaced(frames, kRows);
  const Tensor a = read_clip_frames(actual, shown), b = read_clip_frames(expected, shown);
  std::vector<Tensor> cells;
  for (std::int64_t i = 0; i < a.size(0); ++i) {
    cells.insert(cells.end(), {a[i], b[i], difference_picture(a[i], b[i])});
  }
  SheetLayout layout;
  layout.columns = 3;
  layout.cells = static_cast<std::int64_t>(cells.size());
  write_plain_picture(path, contact_sheet(std::span<const Tensor>(cells), layout));
}

nlohmann::json rate_json(const ClipFacts& facts) {
  return facts.average_rate ? nlohmann::json(frame_rate_text(*facts.average_rate))
                            : nlohmann::json();
}

// As long as both have frames; what is over in one of them is counted only.
ClipMetrics measure_frames(ClipReader& left, ClipReader& right,
                           std::optional<SideBySideClip>& clip) {
  ClipMetrics metrics;
  for (;;) {
    const auto x = left.next(), y = right.next();
    if (!x || !y) break;
    metrics.frames.push_back(image_metrics(x->rgb, y->rgb));
    if (clip) clip->add(x->rgb, y->rgb);
  }
  while (left.skip()) {
  }
  while (right.skip()) {
  }
  return metrics;
}

}  // namespace

CompareReport compare_clips(const fs::path& actual, const fs::path& expected,
                            const CompareOptions& options) {
  ClipReader left(actual), right(expected);
  const ImageSize a = left.facts().size, b = right.facts().size;
  if (a.width != b.width || a.height != b.height) {
    CompareReport report = incomparable(
        fmt::format("{} is {}x{}, but {} is {}x{}; expected the same size", actual.string(),
                    a.width, a.height, expected.string(), b.width, b.height),
        options);
    report.pictures = 1;
    return report;
  }
  std::optional<SideBySideClip> clip;
  const auto format = clip_format_of_name(options.output);
  if (!options.output.empty() && format) clip.emplace(options.output, *format, right.facts());

  const ClipMetrics metrics = measure_frames(left, right, clip);
  CompareReport report;
  if (left.position() != right.position()) {
    report = incomparable(
        fmt::format("{} has {}, but {} has {}; expected the same number", actual.string(),
                    counted(static_cast<std::size_t>(left.position()), "frame"), expected.string(),
                    right.position()),
        options);
    report.pictures = 1;
    return report;
  }
  report.pictures = 1;
  report.extremes = extremes_of(metrics);
  report.json = to_json(metrics);
  report.json["equal"] = report.extremes->max_abs.worst == 0;
  report.json["fps"] = {rate_json(left.facts()), rate_json(right.facts())};
  add_lines(report, metrics);
  add_gates(report, apply_gates(options.gates, metrics));
  if (clip) clip->finish();
  if (!options.output.empty() && !format)
    write_sheet(actual, expected, left.position(), options.output);
  return report;
}

}  // namespace diptych
