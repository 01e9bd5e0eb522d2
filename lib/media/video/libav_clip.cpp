// Clips through libav.
#include <cerrno>
#include <cstring>

#include <sys/stat.h>

#include "lib/base/descriptor.h"
#include "lib/base/error.h"
#include "lib/base/interrupt.h"
#include "lib/base/messages.h"
#include "lib/media/exif.h"
#include "lib/media/file_bytes.h"
#include "lib/media/gif_blocks.h"
#include "lib/media/video/clip_length.h"
#include "lib/media/video/clip_source.h"
#include "lib/media/video/clip_texts.h"
#include "lib/media/video/libav_library.h"

namespace diptych {
namespace {

// No exception may cross libav's C frames.
bool interrupted() {
  try {
    check_interrupted();
    return false;
  } catch (const Interrupted&) {
    return true;
  }
}

// A signal makes libav fail; then it is not the file's fault.
template <typename Work>
auto unless_interrupted(const Work& work) {
  try {
    return work();
  } catch (const InputError&) {
    check_interrupted();
    throw;
  }
}

class LibavClip : public ClipReader::Source {
 public:
  LibavClip(const std::filesystem::path& path, const ClipLimits& limits, bool packets_only)
      : file_(path) {
    const std::string name = path.string();
    struct stat found {};
    if (file_.number < 0 || fstat(file_.number, &found) != 0)
      throw InputError("{}: cannot be read: {}", name, std::strerror(errno));
    if (const auto wanted =
            missing_file_bytes(file_.number, static_cast<std::uint64_t>(found.st_size))) {
      throw InputError("{}: the file is cut off: {} of {} bytes are there", name, found.st_size,
                       *wanted);
    }
    libav::DecoderRequest request{name,         file_.number, found.st_size, limits.max_pixels,
                                  packets_only, interrupted};
    decoder_ = unless_interrupted([&] { return libav_module(name).open_decoder(request); });
    const libav::StreamFacts& stream = decoder_->facts();
    facts_.format = stream.format;
    facts_.codec = stream.codec;
    facts_.pixels = stream.pixels;
    facts_.size = upright_size(stream.height, stream.width, stream.orientation);
    facts_.orientation = stream.orientation;
    facts_.average_rate = stream.average_rate;
    facts_.seconds = stream.seconds;
    facts_.frames = stream.frames;
    facts_.texts = texts_of_tags(stream.tags);
    if (facts_.codec == "gif") read_gif(path);
  }

  bool advance() override {
    for (;;) {
      check_interrupted();
      switch (unless_interrupted([&] { return decoder_->step(); })) {
        case libav::Decoder::Step::frame:
          return true;
        case libav::Decoder::Step::end:
          return false;
        case libav::Decoder::Step::more:
          break;
      }
    }
  }

  ClipFrame frame() override {
    const libav::StreamFacts& stream = decoder_->facts();
    const Tensor stored = at::empty({stream.height, stream.width, 3}, at::kByte);
    decoder_->pixels(stored.data_ptr<std::uint8_t>());
    return {upright(stored, stream.orientation), decoder_->seconds()};
  }

 private:
  // libav passes over a missing end, keeps one comment of several, and guesses at the rate.
  void read_gif(const std::filesystem::path& path) {
    const GifBlocks blocks = read_gif_blocks(read_file_bytes(path));
    if (!blocks.whole) {
      throw InputError("{}: the file is broken or cut off after {}", path.string(),
                       counted(static_cast<std::size_t>(blocks.frames), "frame"));
    }
    constexpr std::int64_t kHundredths = 100;
    facts_.frames = blocks.frames;
    facts_.average_rate = rate_of_ticks(blocks.frames, blocks.hundredths, kHundredths);
    if (blocks.hundredths > 0)
      facts_.seconds = static_cast<double>(blocks.hundredths) / kHundredths;
    facts_.texts = texts_of_comments(blocks.comments);
  }

  Descriptor file_;
  std::unique_ptr<libav::Decoder> decoder_;  // reads file_
};

}  // namespace

std::unique_ptr<ClipReader::Source> open_libav_clip(const std::filesystem::path& path,
                                                    const ClipLimits& limits) {
  return std::make_unique<LibavClip>(path, limits, false);
}

std::int64_t count_libav_packets(const std::filesystem::path& path, const ClipLimits& limits) {
  LibavClip packets(path, limits, true);
  std::int64_t count = 0;
  while (packets.advance()) ++count;
  return count;
}

}  // namespace diptych
