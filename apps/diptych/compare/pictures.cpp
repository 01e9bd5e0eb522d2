#include <fmt/format.h>
#include <fmt/ranges.h>

#include "apps/diptych/compare/files.h"
#include "apps/diptych/compare/side_by_side.h"
#include "lib/base/atomic_file.h"
#include "lib/media/image_read.h"
#include "lib/media/picture_write.h"
#include "lib/verify/json.h"

namespace diptych {
namespace {

namespace fs = std::filesystem;

std::string describe(const ImageMetrics& metrics) {
  const Difference& gap = metrics.difference;
  if (gap.max_abs == 0) return "equal";
  const std::string similarity =
      metrics.ssim ? fmt::format("ssim {:.6f}, ms-ssim {:.6f}", *metrics.ssim, *metrics.ms_ssim)
                   : "ssim none below 11x11 pixels";
  return fmt::format("{}, psnr {:.2f} dB, max abs {:g}, mean abs {:.4g}, cosine {:.6f}", similarity,
                     metrics.psnr, gap.max_abs, gap.mean_abs, gap.cosine);
}

}  // namespace

void write_plain_picture(const fs::path& path, const Tensor& rgb) {
  const auto bytes = encode_picture(rgb, {}, {format_of_name(path).value()});
  AtomicFile file(path);
  file.write(bytes.data(), bytes.size());
  file.commit();
}

Tensor side_by_side(const Tensor& actual, const Tensor& expected) {
  constexpr std::int64_t kGap = 4;
  constexpr std::uint8_t kGray = 32;
  const Tensor gap = at::full({actual.size(0), kGap, 3}, kGray, at::kByte);
  return at::cat({actual, gap, expected, gap, difference_picture(actual, expected)}, 1);
}

CompareReport incomparable(const std::string& text, const CompareOptions& options) {
  std::vector<std::string> unwritten;
  for (const fs::path* path : {&options.difference, &options.output}) {
    if (!path->empty()) unwritten.push_back(path->string());
  }
  if (unwritten.empty()) return problem(text, false);
  return problem(fmt::format("{}; {} {} not written", text, fmt::join(unwritten, " and "),
                             unwritten.size() == 1 ? "is" : "are"),
                 false);
}

void add_gates(CompareReport& report, const std::vector<GateResult>& gates) {
  if (gates.empty()) return;
  nlohmann::json list = nlohmann::json::array();
  for (const GateResult& gate : gates) {
    if (!gate.pass) {
      report.lines.push_back(describe(gate));
      report.failed_gates.push_back(describe(gate));
    }
    report.pass = report.pass && gate.pass;
    list.push_back(to_json(gate));
  }
  report.json["gates"] = std::move(list);
}

CompareReport compare_pictures(const fs::path& actual, const fs::path& expected,
                               const CompareOptions& options) {
  const Tensor a = read_image(actual), b = read_image(expected);
  CompareReport report;
  if (a.sizes() != b.sizes()) {
    report = incomparable(
        fmt::format("{} is {}x{}, but {} is {}x{}; expected the same size", actual.string(),
                    a.size(1), a.size(0), expected.string(), b.size(1), b.size(0)),
        options);
    report.pictures = 1;
    return report;
  }
  report.pictures = 1;
  const ImageMetrics metrics = image_metrics(a, b);
  report.extremes = extremes_of({{metrics}});
  report.json = to_json(metrics);
  report.json["equal"] = metrics.difference.max_abs == 0;
  report.lines.push_back(describe(metrics));
  add_gates(report, apply_gates(options.gates, metrics));
  if (!options.difference.empty())
    write_plain_picture(options.difference, difference_picture(a, b));
  if (!options.output.empty()) write_plain_picture(options.output, side_by_side(a, b));
  return report;
}

}  // namespace diptych
