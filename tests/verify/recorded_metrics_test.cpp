// The measures of pytorch_msssim 1.0.0 and PSNR, as recorded of pairs of pictures.
#include <filesystem>
#include <string>

#include <doctest/doctest.h>
#include <fmt/format.h>

#include "lib/media/image_read.h"
#include "lib/tensor/safetensors.h"
#include "lib/verify/metrics.h"
#include "tests/verify/goldens.h"

namespace {

namespace fs = std::filesystem;
using namespace diptych;

TEST_CASE("SSIM, MS-SSIM and PSNR are those of the recorded pairs") {
  std::size_t pairs = 0;
  for (const fs::path& goldens : test::goldens_of("wan")) {
    const fs::path folder = goldens / "cases/ssim_metric";
    const double tolerance = test::case_json(folder)["tolerance"]["ssim"];
    const auto expected = SafetensorsFile::open(folder / "expected.safetensors");
    const auto value = [&](const std::string& name) { return expected.view(name).item<double>(); };
    for (int i = 0; i < 3; ++i) {
      const fs::path a = folder / fmt::format("a_{}.png", i);
      if (!fs::exists(a)) continue;
      CAPTURE(a.string());
      const Tensor clean = read_image(a);
      const ImageMetrics noisy =
          image_metrics(read_image(folder / fmt::format("noisy_{}.png", i)), clean);
      CHECK(noisy.ssim.value() ==
            doctest::Approx(value(fmt::format("noisy.frame{}.ssim", i))).epsilon(tolerance));
      CHECK(noisy.ms_ssim.value() ==
            doctest::Approx(value(fmt::format("noisy.frame{}.ms_ssim", i))).epsilon(tolerance));
      CHECK(noisy.psnr ==
            doctest::Approx(value(fmt::format("noisy.frame{}.psnr", i))).epsilon(tolerance));
      CHECK(image_metrics(clean, clean).ssim.value() == doctest::Approx(1));
      ++pairs;
    }
  }
  CHECK(pairs > 0);
}

}  // namespace
