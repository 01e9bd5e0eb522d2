// Mutants of valid pictures: each ends in a picture or an InputError. DIPTYCH_FUZZ_ITERATIONS sets
// how many.
#include <algorithm>
#include <cstdlib>
#include <random>

#include <doctest/doctest.h>

#include "lib/media/file_bytes.h"
#include "lib/media/image_read.h"
#include "lib/media/picture_write.h"
#include "tests/media/png_builder.h"
#include "tests/media/support.h"

namespace {

using namespace diptych;
using test::Bytes;

struct Seed {
  std::string name;
  Bytes bytes;
};

std::vector<Seed> seeds() {
  std::vector<Seed> found;
  for (const auto& entry : std::filesystem::directory_iterator(test::pictures_folder())) {
    const auto format = format_of_name(entry.path());
    if (format && facts_of(*format).built_in)
      found.push_back({entry.path().filename().string(), read_file_bytes(entry.path())});
  }
  // With texts, as this program writes them.
  const PictureTexts texts = {{"parameters", "a cat\nSteps: 50"}, {"diptych", "{\"seed\": 1}"}};
  for (const std::string_view extension : written_extensions()) {
    const std::string name = "written" + std::string(extension);
    const auto rgb = at::arange(16 * 9 * 3, at::kByte).reshape({16, 9, 3});
    found.push_back({name, encode_picture(rgb, texts, {*format_of_name(name), 80})});
  }
  std::sort(found.begin(), found.end(),
            [](const Seed& a, const Seed& b) { return a.name < b.name; });
  return found;
}

class Mutator {
 public:
  explicit Mutator(std::uint32_t seed) : random_(seed) {}

  std::size_t below(std::size_t limit) { return random_() % limit; }

  void mutate(Bytes& bytes) {
    for (std::size_t edits = 1 + below(4); edits > 0 && !bytes.empty(); --edits) {
      // Half of the edits in the first bytes, where the headers are.
      const std::size_t at =
          below(below(2) == 0 ? std::min<std::size_t>(bytes.size(), 100) : bytes.size());
      const auto place = bytes.begin() + static_cast<std::ptrdiff_t>(at);
      switch (below(6)) {
        case 0:
          *place ^= static_cast<std::uint8_t>(1u << below(8));
          break;
        case 1:
          *place = static_cast<std::uint8_t>(random_());
          break;
        case 2:
          *place = below(2) == 0 ? 0xFF : 0;
          break;
        case 3:
          bytes.erase(place);
          break;
        case 4:
          bytes.resize(at);
          break;
        default:
          bytes.insert(place, static_cast<std::uint8_t>(random_()));
      }
    }
  }

 private:
  std::mt19937 random_;
};

TEST_CASE("mutated pictures end in a picture or an InputError") {
  const std::vector<Seed> all = seeds();
  REQUIRE(all.size() >= 60);
  const char* wanted = std::getenv("DIPTYCH_FUZZ_ITERATIONS");
  const long iterations = wanted != nullptr ? std::atol(wanted) : 10'000;
  long pictures = 0, refused = 0, exhausted = 0;
  for (long i = 0; i < iterations; ++i) {
    Mutator mutator(static_cast<std::uint32_t>(i));
    const Seed& seed = all[mutator.below(all.size())];
    Bytes bytes = seed.bytes;
    mutator.mutate(bytes);
    if (seed.name.ends_with(".png")) test::repair_crcs(bytes);  // to reach the code behind the CRC
    CAPTURE(i);
    CAPTURE(seed.name);
    try {
      const Tensor rgb = decode_image(bytes, "mutated");
      REQUIRE(rgb.dim() == 3);
      REQUIRE(rgb.size(2) == 3);
      ++pictures;
    } catch (const InputError&) {
      ++refused;
    } catch (const RunError&) {  // some builds of libjpeg bound what a file may make them take
      ++exhausted;
    }
  }
  CHECK(pictures + refused + exhausted == iterations);
  CHECK(exhausted <= iterations / 20);
  if (iterations >= 1000) {  // the mutator reaches both sides
    CHECK(pictures > iterations / 20);
    CHECK(refused > iterations / 4);
  }
}

}  // namespace
