#include "lib/media/video/contact_sheet.h"

#include "tests/media/video/support.h"

namespace {

using namespace diptych;
using namespace diptych::test;

TEST_CASE("frames are picked evenly, the first and the last among them") {
  CHECK(evenly_spaced(49, 5) == std::vector<std::int64_t>{0, 12, 24, 36, 48});
  CHECK(evenly_spaced(10, 4) == std::vector<std::int64_t>{0, 3, 6, 9});
  CHECK(evenly_spaced(3, 8) == std::vector<std::int64_t>{0, 1, 2});
  CHECK(evenly_spaced(5, 1) == std::vector<std::int64_t>{0});
  CHECK(evenly_spaced(0, 4).empty());
}

TEST_CASE("cells stand row by row with gaps between") {
  const Tensor frames = moving_frames(6, 20, 30);
  const Tensor sheet = contact_sheet(frames, {.cells = 6, .columns = 3, .gap = 2});
  REQUIRE(sheet.sizes() == at::IntArrayRef({2 * 22 + 2, 3 * 32 + 2, 3}));
  for (std::int64_t i = 0; i < 6; ++i) {
    const Tensor cell = sheet.narrow(0, 2 + i / 3 * 22, 20).narrow(1, 2 + i % 3 * 32, 30);
    CHECK(at::equal(cell, frames[i]));
  }
  CHECK(at::equal(sheet.narrow(0, 0, 2), at::full({2, 98, 3}, 32, at::kByte)));
}

TEST_CASE("a sheet is as square as it gets and no larger than allowed") {
  const Tensor wide = moving_frames(4, 10, 40), tall = moving_frames(4, 40, 10);
  CHECK(contact_sheet(wide, {.gap = 0}).sizes() == at::IntArrayRef({40, 40, 3}));
  CHECK(contact_sheet(tall, {.gap = 0}).sizes() == at::IntArrayRef({40, 40, 3}));
  const Tensor small =
      contact_sheet(moving_frames(9, 100, 150), {.cells = 9, .gap = 3, .max_side = 200});
  CHECK(small.size(0) <= 200);
  CHECK(small.size(1) <= 200);
  CHECK(std::max(small.size(0), small.size(1)) > 190);
}

}  // namespace
