#include <webp/demux.h>

#include "lib/base/error.h"
#include "lib/base/messages.h"
#include "lib/media/file_bytes.h"
#include "lib/media/metadata.h"
#include "lib/media/video/clip_source.h"
#include "lib/media/video/clip_texts.h"

namespace diptych {
namespace {

constexpr std::int64_t kMilliseconds = 1'000;

struct FreeDecoder {
  void operator()(WebPAnimDecoder* decoder) const { WebPAnimDecoderDelete(decoder); }
};

std::string_view as_text(const WebPData& data) {
  return {reinterpret_cast<const char*>(data.bytes), data.size};
}

class WebpClip : public ClipReader::Source {
 public:
  WebpClip(const std::filesystem::path& path, const ClipLimits& limits)
      : name_(path.string()), bytes_(read_file_bytes(path)) {
    const WebPData data{bytes_.data(), bytes_.size()};
    WebPAnimDecoderOptions options;
    if (WebPAnimDecoderOptionsInit(&options) == 0)
      throw RunError("{}: another libwebp was built with", name_);
    options.color_mode = MODE_RGBA;
    check_size(data, limits);
    decoder_.reset(WebPAnimDecoderNew(&data, &options));
    WebPAnimInfo info;
    if (decoder_ == nullptr || WebPAnimDecoderGetInfo(decoder_.get(), &info) == 0)
      throw InputError("{}: a broken WebP file", name_);
    facts_.format = facts_.codec = "webp";
    facts_.pixels = "rgba";
    facts_.frames = info.frame_count;
    read_container();
  }

  bool advance() override {
    if (WebPAnimDecoderHasMoreFrames(decoder_.get()) == 0) return false;
    begin_ = end_;
    if (WebPAnimDecoderGetNext(decoder_.get(), &canvas_, &end_) == 0)
      throw InputError("{}: the file is damaged after {}", name_,
                       counted(static_cast<std::size_t>(frames_), "frame"));
    ++frames_;
    return true;
  }

  ClipFrame frame() override {
    const Tensor rgb = at::empty({facts_.size.height, facts_.size.width, 3}, at::kByte);
    auto* out = rgb.data_ptr<std::uint8_t>();
    const std::int64_t pixels = facts_.size.height * facts_.size.width;
    for (std::int64_t i = 0; i < pixels; ++i) {
      for (std::int64_t c = 0; c < 3; ++c)
        out[i * 3 + c] = over_white(canvas_[i * 4 + c], canvas_[i * 4 + 3]);
    }
    return {rgb, static_cast<double>(begin_) / kMilliseconds};
  }

 private:
  // Before the decoder allocates its canvases. The demuxer reads a file that is cut off as far as
  // it goes.
  void check_size(const WebPData& data, const ClipLimits& limits) {
    WebPDemuxState state = WEBP_DEMUX_PARSE_ERROR;
    demuxer_.reset(WebPDemuxPartial(&data, &state));
    if (demuxer_ == nullptr || state == WEBP_DEMUX_PARSE_ERROR)
      throw InputError("{}: a broken WebP file", name_);
    facts_.size.width = WebPDemuxGetI(demuxer_.get(), WEBP_FF_CANVAS_WIDTH);
    facts_.size.height = WebPDemuxGetI(demuxer_.get(), WEBP_FF_CANVAS_HEIGHT);
    if (state != WEBP_DEMUX_DONE) {
      throw InputError("{}: the file is cut off: it ends after {}", name_,
                       counted(whole_frames(), "frame"));
    }
    check_frame_size(facts_.size.width, facts_.size.height, limits, name_);
  }

  std::size_t whole_frames() const {
    std::size_t whole = 0;
    const std::uint32_t frames = WebPDemuxGetI(demuxer_.get(), WEBP_FF_FRAME_COUNT);
    for (std::uint32_t i = 1; i <= frames; ++i) {
      WebPIterator frame;
      const bool found = WebPDemuxGetFrame(demuxer_.get(), static_cast<int>(i), &frame) != 0;
      whole += found && frame.complete != 0 ? 1 : 0;
      if (found) WebPDemuxReleaseIterator(&frame);
    }
    return whole;
  }

  void read_container() {
    std::int64_t milliseconds = 0;
    for (std::int64_t i = 1; i <= facts_.frames.value(); ++i) {
      WebPIterator frame;
      if (WebPDemuxGetFrame(demuxer_.get(), static_cast<int>(i), &frame) == 0) break;
      milliseconds += frame.duration;
      WebPDemuxReleaseIterator(&frame);
    }
    facts_.average_rate = rate_of_ticks(facts_.frames.value(), milliseconds, kMilliseconds);
    if (milliseconds > 0) facts_.seconds = static_cast<double>(milliseconds) / kMilliseconds;
    facts_.texts = merge_texts(xmp_texts(chunk("XMP ")), exif_texts(exif()));
    // libwebp writes a single frame as a still picture, which has no duration.
    if (!facts_.average_rate) facts_.average_rate = recorded_rate(facts_.texts);
  }

  std::string_view chunk(const char* kind) const {
    WebPChunkIterator found;
    if (WebPDemuxGetChunk(demuxer_.get(), kind, 1, &found) == 0) return {};
    const WebPData data = found.chunk;  // of bytes_
    WebPDemuxReleaseChunkIterator(&found);
    return as_text(data);
  }
  std::span<const std::uint8_t> exif() const {
    const std::string_view bytes = chunk("EXIF");
    return {reinterpret_cast<const std::uint8_t*>(bytes.data()), bytes.size()};
  }

  std::string name_;
  std::vector<std::uint8_t> bytes_;
  std::unique_ptr<WebPDemuxer, void (*)(WebPDemuxer*)> demuxer_{nullptr, WebPDemuxDelete};
  std::unique_ptr<WebPAnimDecoder, FreeDecoder> decoder_;
  std::uint8_t* canvas_ = nullptr;  // the decoder's, RGBA
  int begin_ = 0, end_ = 0;         // of the frame, in milliseconds
  std::int64_t frames_ = 0;
};

}  // namespace

std::unique_ptr<ClipReader::Source> open_webp_clip(const std::filesystem::path& path,
                                                   const ClipLimits& limits) {
  return std::make_unique<WebpClip>(path, limits);
}

}  // namespace diptych
