#include <iterator>

#include <ATen/Parallel.h>
#include <doctest/doctest.h>

#include "lib/base/error.h"
#include "lib/media/png.h"
#include "tests/support/folder.h"

namespace {

using namespace diptych;

Tensor picture(std::int64_t height, std::int64_t width) {
  return (at::arange(height * width * 3, at::kInt) * 37 + 11)
      .remainder(256)
      .to(at::kByte)
      .reshape({height, width, 3});
}

bool holds(const std::vector<std::uint8_t>& bytes, std::string_view text) {
  return std::string_view(reinterpret_cast<const char*>(bytes.data()), bytes.size()).find(text) !=
         std::string_view::npos;
}

TEST_CASE("pixels and texts come back as written") {
  const PictureTexts text = {{"parameters", "a fox\nSteps: 50"},
                             {"na\u00efve", "caf\u00e9"},
                             {"diptych", "{\"prompt\":\"\u72d0\u72f8 \U0001F98A\"}"},
                             {"empty", ""}};
  for (const auto& [height, width] : {std::pair{1, 1}, {1, 7}, {7, 1}, {33, 65}}) {
    const Tensor rgb = picture(height, width);
    const Image image = decode_png(encode_png(rgb, text), "memory");
    CHECK(at::equal(image.rgb, rgb));
    CHECK(image.text == text);
  }
}

TEST_CASE("tEXt where Latin-1 suffices, else iTXt") {
  const auto ascii = encode_png(picture(2, 2), PictureTexts{{"parameters", "a fox"}});
  CHECK(holds(ascii, std::string("tEXtparameters\0a fox", 20)));
  CHECK_FALSE(holds(ascii, "iTXt"));
  const auto latin1 = encode_png(picture(2, 2), PictureTexts{{"parameters", "\u00fc"}});
  CHECK(holds(latin1, std::string("tEXtparameters\0\xFC", 16)));
  const auto unicode = encode_png(picture(2, 2), PictureTexts{{"parameters", "\u72d0"}});
  CHECK(holds(unicode, std::string("iTXtparameters\0\0\0\0\0\xE7\x8B\x90", 22)));
  CHECK_FALSE(holds(unicode, "tEXt"));
}

TEST_CASE("equal arguments give equal bytes, without a time") {
  const auto first = encode_png(picture(20, 30), PictureTexts{{"a", "b"}});
  CHECK(first == encode_png(picture(20, 30), PictureTexts{{"a", "b"}}));
  CHECK_FALSE(holds(first, "tIME"));
}

// What a row's filter is for, and pictures whose data take several chunks.
TEST_CASE("slopes, flat colours, noise and repeats come back as written") {
  const Tensor row = at::arange(200, at::kInt).view({1, 200, 1});
  const Tensor column = at::arange(300, at::kInt).view({300, 1, 1});
  at::Generator generator = at::detail::createCPUGenerator(5);
  const Tensor noise = at::randint(256, {900, 800, 3}, generator, at::kInt);
  const Tensor channels = at::tensor({1, 3, 7}, at::kInt);
  for (const Tensor& values : {(row + column) * channels, row * channels + column.mul(0),
                               column * column + row.mul(0), at::full({300, 200, 3}, 255, at::kInt),
                               noise, noise.narrow(0, 0, 1), noise.narrow(1, 0, 1)}) {
    const Tensor rgb = values.expand({values.size(0), values.size(1), 3})
                           .bitwise_and(255)
                           .to(at::kByte)
                           .contiguous();
    CHECK(at::equal(decode_png(encode_png(rgb), "memory").rgb, rgb));
  }
  // Noise takes no less than its bytes, and hardly more; a slope takes next to nothing.
  const auto bytes_of = [](const Tensor& values) {
    return encode_png(values.bitwise_and(255).to(at::kByte)).size();
  };
  CHECK(bytes_of(noise) > 900 * 800 * 3);
  CHECK(bytes_of(noise) < 900 * 800 * 3 + 10000);
  CHECK(bytes_of((row + column).expand({300, 200, 3})) < 2000);
  CHECK(bytes_of(at::full({300, 200, 3}, 255, at::kInt)) < 2000);
}

TEST_CASE("the bytes do not depend on the number of threads") {
  at::Generator generator = at::detail::createCPUGenerator(6);
  const Tensor rgb = at::randint(40, {700, 500, 3}, generator, at::kByte);  // several parts
  const int threads = at::get_num_threads();
  at::set_num_threads(1);
  const auto one = encode_png(rgb);
  at::set_num_threads(3);
  const auto three = encode_png(rgb);
  at::set_num_threads(threads);
  CHECK(one == three);
  CHECK(at::equal(decode_png(one, "memory").rgb, rgb));
}

TEST_CASE("strided pictures are written as they look") {
  const Tensor flipped = picture(9, 5).transpose(0, 1);  // [5, 9, 3]
  CHECK(at::equal(decode_png(encode_png(flipped), "memory").rgb, flipped));
}

TEST_CASE("texts that PNG cannot hold are refused") {
  const Tensor rgb = picture(2, 2);
  const auto refuse = [&](const std::string& keyword, const std::string& value) {
    CHECK_THROWS_AS(encode_png(rgb, PictureTexts{{keyword, value}}), InputError);
  };
  refuse("", "x");
  refuse(std::string(80, 'k'), "x");
  refuse(" k", "x");
  refuse("k ", "x");
  refuse("k  k", "x");
  refuse("k\n", "x");
  refuse("\u72d0", "x");
  refuse("k", std::string("a\0b", 3));
  refuse("k", "\xff");
  refuse("k", "\xc0\xaf");          // overlong
  refuse("k", "\xed\xa0\x80");      // a surrogate
  refuse("k", "\xf4\x90\x80\x80");  // past U+10FFFF
  refuse("k", "\xe7\x8b");          // cut
  CHECK(decode_png(encode_png(rgb, PictureTexts{{std::string(79, 'k'), "x"}}), "memory")
            .text.size() == 1);
}

TEST_CASE("anything but uint8 [height, width, 3] is a programmer's error") {
  CHECK_THROWS_AS(encode_png(at::zeros({2, 2, 3})), c10::Error);
  CHECK_THROWS_AS(encode_png(at::zeros({2, 2, 4}, at::kByte)), c10::Error);
  CHECK_THROWS_AS(encode_png(at::zeros({0, 2, 3}, at::kByte)), c10::Error);
}

TEST_CASE("a file is written whole or not at all") {
  const test::Folder folder;
  const auto path = folder.path() / "out.png";
  write_png(path, picture(4, 6), PictureTexts{{"k", "v"}});
  CHECK(at::equal(read_png(path).rgb, picture(4, 6)));
  CHECK_THROWS_AS(write_png(path, picture(4, 4), PictureTexts{{"k", "\xff"}}), InputError);
  CHECK(read_png(path).rgb.size(1) == 6);
  CHECK_THROWS_AS(write_png(folder.path() / "missing" / "out.png", picture(2, 2)), InputError);
  CHECK(std::distance(std::filesystem::directory_iterator(folder.path()), {}) ==
        1);  // nothing half-written
}

}  // namespace
