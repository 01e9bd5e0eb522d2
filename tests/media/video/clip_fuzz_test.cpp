// Mutants of valid clips: each ends in frames or an InputError, soon. DIPTYCH_FUZZ_ITERATIONS sets
// how many.
#include <chrono>
#include <cstdlib>
#include <random>

#include "lib/media/file_bytes.h"
#include "lib/media/video/clip_read.h"
#include "tests/media/video/support.h"

namespace {

using namespace diptych;
using namespace diptych::test;
namespace fs = std::filesystem;
using Bytes = std::vector<std::uint8_t>;
using Clock = std::chrono::steady_clock;

std::vector<Bytes> seeds(const Folder& folder) {
  const PictureTexts texts = {{"parameters", "a cat"}, {"diptych", "{\"schema\": \"diptych.x\"}"}};
  const Tensor frames = moving_frames(6, 32, 48);
  std::vector<Bytes> found;
  for (const ClipFormatFacts& facts : clip_formats()) {
    const bool read = facts.format != ClipFormat::gif || have_libav();
    if (!facts.built_in || !read || facts.format == ClipFormat::png) continue;
    found.push_back(read_file_bytes(
        write_clip(folder, "seed" + std::string(facts.extension), frames, {}, texts)));
  }
  if (!have_libav() || !have_ffmpeg()) return found;
  const std::string source = "-f lavfi -i testsrc2=size=48x32:rate=25 -frames:v 6 ";
  for (const auto& [name, codec] : {std::pair{"seed.mkv", "-c:v libx265 -x265-params log-level=0"},
                                    {"seed.avi", "-c:v mpeg4"},
                                    {"seed.ts", "-c:v mpeg2video"},
                                    {"seed.mov", "-c:v prores_ks"}}) {
    found.push_back(read_file_bytes(make_clip(folder, name, source + codec)));
  }
  return found;
}

void mutate(Bytes& bytes, std::mt19937& random) {
  for (std::size_t edits = 1 + random() % 4; edits > 0 && bytes.size() > 1; --edits) {
    const std::size_t front = std::min<std::size_t>(bytes.size(), 600);
    const std::size_t at = random() % (random() % 2 == 0 ? front : bytes.size());
    switch (random() % 5) {
      case 0:
        bytes[at] ^= static_cast<std::uint8_t>(1u << random() % 8);
        break;
      case 1:
        bytes[at] = static_cast<std::uint8_t>(random());
        break;
      case 2:
        bytes[at] = random() % 2 == 0 ? 0xFF : 0;
        break;
      case 3:
        bytes.erase(bytes.begin() + static_cast<std::ptrdiff_t>(at));
        break;
      default:
        bytes.resize(random() % 4 == 0 ? at + 1 : bytes.size());
    }
  }
}

TEST_CASE("mutated clips end in frames or an InputError") {
  const Folder folder;
  const std::vector<Bytes> all = seeds(folder);
  if (all.empty()) return;
  const char* wanted = std::getenv("DIPTYCH_FUZZ_ITERATIONS");
  const int iterations = wanted != nullptr ? std::atoi(wanted) : 3'000;
  const auto end = Clock::now() + std::chrono::seconds(wanted != nullptr ? 100'000 : 5);
  ClipLimits limits;
  limits.max_frames = 200;
  limits.max_pixels = 1 << 20;
  std::mt19937 random(7);
  int done = 0, read = 0;
  const fs::path path = folder / "mutant";
  for (; done < iterations && Clock::now() < end; ++done) {
    Bytes bytes = all[static_cast<std::size_t>(done) % all.size()];
    mutate(bytes, random);
    folder.write("mutant", {reinterpret_cast<const char*>(bytes.data()), bytes.size()});
    CAPTURE(done);
    try {
      ClipReader clip(path, limits);
      while (clip.next()) {
      }
      ++read;
    } catch (const InputError& error) {
      CHECK(std::string(error.what()).starts_with(path.string() + ": "));
    }
  }
  MESSAGE(done << " mutants, " << read << " of them read to their end");
  CHECK(done > 50);
  CHECK(read > 0);
  CHECK(read < done);
}

}  // namespace
