// Lance's fixed table of latent positions against recorded rows and its definition.
#include "lib/models/qwen_mot/latent_positions.h"

#include <cmath>

#include <doctest/doctest.h>

#include "lib/base/error.h"
#include "lib/tensor/safetensors.h"
#include "tests/support/folder.h"

namespace diptych {
namespace {

const std::string kPositions =
    DIPTYCH_SOURCE_DIR "/tests/goldens/lance/cases/10_positions/expected.safetensors";
constexpr double kAllowed = 2e-6;  // case.json: latent_pos_embed.rows_hidden64

// One value of the table: column `i` of the row at (frame, row, column).
double defined(std::int64_t hidden, std::array<std::int64_t, 3> place, std::int64_t i) {
  const std::int64_t part = hidden / 3 - hidden / 3 % 2;
  const std::int64_t axis = std::min<std::int64_t>(i / part, 2);
  const std::int64_t width = axis == 2 ? hidden - 2 * part : part, j = i - axis * part;
  const double half = static_cast<double>(width / 2);
  const double frequency = std::pow(10000.0, -static_cast<double>(j % (width / 2)) / half);
  const double angle = static_cast<double>(place[static_cast<std::size_t>(axis)]) * frequency;
  return j < width / 2 ? std::sin(angle) : std::cos(angle);
}

TEST_CASE("golden case 10: rows of the table") {
  const auto file = SafetensorsFile::open(kPositions);
  const Tensor index = file.view("latent_pos_embed.index"),
               expected = file.view("latent_pos_embed.rows_hidden64");
  const LatentTable table;
  const Tensor all = table.rows(31, 64, 64, 64);
  CHECK(all.sizes() == at::IntArrayRef({126'976, 64}));
  CHECK((all.index_select(0, index) - expected).abs().max().item<double>() <= kAllowed);
}

TEST_CASE("rows are what the definition says, at the released width, too") {
  const LatentTable table;
  for (const std::int64_t hidden : {12, 64, 2048}) {
    const Tensor rows = table.rows(3, 5, 7, hidden);
    double worst = 0;
    for (std::int64_t row = 0; row < rows.size(0); ++row) {
      const float* values = rows.const_data_ptr<float>() + row * hidden;
      for (std::int64_t i = 0; i < hidden; ++i)
        worst = std::max(
            worst, std::abs(values[i] - defined(hidden, {row / 35, row / 7 % 5, row % 7}, i)));
    }
    CHECK(worst <= kAllowed);
  }
}

TEST_CASE("a picture wider than the table runs on into the next row") {
  const LatentTable table;
  const Tensor index = table.indices(2, 2, 72);
  CHECK(index[71].item<std::int64_t>() == 71);
  CHECK(index[72].item<std::int64_t>() == 64);
  CHECK(index[2 * 72].item<std::int64_t>() == 4096);
  const Tensor rows = table.rows(2, 2, 72, 64);
  CHECK(at::equal(rows[64], rows[72]));  // column 64 of row 0 is column 0 of row 1
  CHECK(at::equal(rows[71], rows[79]));
  // Row 64 of a frame is row 0 of the next one.
  const Tensor tall = table.rows(2, 65, 1, 64);
  CHECK(at::equal(tall[64], tall[65]));
}

TEST_CASE("beyond its last row there is none") {
  const LatentTable image{.frames = 1};
  CHECK(image.indices(1, 64, 64).size(0) == 4096);
  CHECK(test::message_of([&] { image.indices(1, 64, 65); }) ==
        "1 latent frames of 64x65 rows, the table of positions has 1 frames of 64x64");
  CHECK_THROWS_AS(LatentTable{}.indices(32, 4, 4), InputError);
  CHECK(LatentTable{}.indices(31, 31, 72).size(0) == 31 * 31 * 72);
  CHECK_THROWS_AS(image.rows(1, 2, 2, 13), c10::Error);
}

}  // namespace
}  // namespace diptych
