#include "lib/media/video/libav/encoder.h"

#include <algorithm>
#include <cstring>
#include <vector>

extern "C" {
#include <libavutil/opt.h>
}

#include "lib/media/video/libav/output.h"

namespace diptych::libav {
namespace {

struct Recipe {
  ClipFormat format;
  const char *muxer, *codec;
  int most_threads;
  std::vector<std::pair<const char*, const char*>> codec_options, muxer_options;
};

// The number of threads shapes what x264 and libvpx write, so it is not the machine's but the
// frames': with few rows for each, x264 finds less motion. On two cores x264 takes as long with 15
// as with 4, but libvpx a tenth longer.
constexpr int kFewestThreads = 4, kMostThreads = 16, kRowsOfThread = 32;
int threads_of(int height, int most) {
  return std::clamp(height / kRowsOfThread, kFewestThreads, most);
}

// The instruction sets that x264 may use. Its tree of macroblocks ("mbtree") gives, with AVX-512,
// other bytes for the same frames where memory was in use before (x264 164), so it has all sets of
// a CPU with AVX-512 but that one.
const char* x264_params() {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512f")) return "asm=MMX2,SSE2Fast,SSSE3,SSE4.2,AVX,FMA3,BMI2,AVX2";
#endif
  return "asm=auto";
}

const Recipe& recipe_of(ClipFormat format) {
  static const Recipe kMp4{ClipFormat::mp4,
                           "mp4",
                           "libx264",
                           kMostThreads,
                           {{"preset", "medium"}, {"x264-params", x264_params()}},
                           {{"movflags", "+faststart+write_colr"}}};
  static const Recipe kWebm{ClipFormat::webm,
                            "webm",
                            "libvpx-vp9",
                            kFewestThreads,
                            {{"deadline", "good"}, {"cpu-used", "4"}, {"row-mt", "1"}},
                            {}};
  return format == ClipFormat::mp4 ? kMp4 : kWebm;
}

AVRational to_rational(std::int64_t numerator, std::int64_t denominator) {
  return {static_cast<int>(numerator), static_cast<int>(denominator)};
}

// BT.709, limited range, chroma at the left: what browsers and players take for granted.
class Yuv {
 public:
  Yuv(int width, int height) : width_(width), height_(height) {
    scaler_ = required(Scaler(sws_alloc_context()));
    const auto set = [&](const char* name, std::int64_t value) {
      must(av_opt_set_int(scaler_.get(), name, value, 0), name);
    };
    set("srcw", width);
    set("srch", height);
    set("dstw", width);
    set("dsth", height);
    set("src_format", AV_PIX_FMT_RGB24);
    set("dst_format", AV_PIX_FMT_YUV420P);
    set("src_range", 1);
    set("dst_range", 0);
    set("dst_h_chr_pos", 0);
    set("dst_v_chr_pos", 128);
    // The same levels on every machine; every pixel counts for the chroma.
    set("sws_flags", SWS_BICUBIC | SWS_ACCURATE_RND | SWS_BITEXACT | SWS_FULL_CHR_H_INP);
    must(sws_init_context(scaler_.get(), nullptr, nullptr), "conversion to YUV");
    constexpr int kOne = 1 << 16;
    const int* bt709 = sws_getCoefficients(SWS_CS_ITU709);
    must(sws_setColorspaceDetails(scaler_.get(), bt709, 1, bt709, 0, 0, kOne, kOne), "BT.709");
    rgb_ = frame_of(AV_PIX_FMT_RGB24);
  }

  Frame frame_of(AVPixelFormat format) const {
    Frame frame = required(Frame(av_frame_alloc()));
    frame->format = format;
    frame->width = width_;
    frame->height = height_;
    must(av_frame_get_buffer(frame.get(), 0), "a frame");
    return frame;
  }

  Frame convert(const std::uint8_t* rgb) const {
    const auto row_bytes = static_cast<std::size_t>(width_) * 3;
    for (int y = 0; y < height_; ++y) {
      std::memcpy(rgb_->data[0] + std::ptrdiff_t{y} * rgb_->linesize[0],
                  rgb + static_cast<std::size_t>(y) * row_bytes, row_bytes);
    }
    Frame yuv = frame_of(AV_PIX_FMT_YUV420P);
    must(sws_scale(scaler_.get(), rgb_->data, rgb_->linesize, 0, height_, yuv->data, yuv->linesize),
         "conversion to YUV");
    return yuv;
  }

 private:
  int width_, height_;
  Scaler scaler_;
  Frame rgb_;  // rows as swscale likes to read them
};

// Packets wait for finish(): what the container holds in front, such as the tags of WebM, is known
// only then.
class FileEncoder : public Encoder {
 public:
  explicit FileEncoder(const EncoderRequest& request)
      : request_(request),
        recipe_(recipe_of(request.format)),
        yuv_(static_cast<int>(request.width), static_cast<int>(request.height)) {
    open_codec();
  }

  void add(const std::uint8_t* rgb) override {
    Frame frame = yuv_.convert(rgb);
    frame->pts = frames_++;
    encode(frame.get());
  }

  std::vector<std::uint8_t> finish(const Tags& tags) override {
    encode(nullptr);
    Output output(recipe_.muxer);
    write(output, tags);
    return output.take();
  }

 private:
  void open_codec();
  void encode(const AVFrame* frame);
  void write(Output& output, const Tags& tags);

  EncoderRequest request_;
  const Recipe& recipe_;
  Yuv yuv_;
  CodecContext codec_;
  std::vector<Packet> packets_;
  std::int64_t frames_ = 0;
};

void FileEncoder::open_codec() {
  const AVCodec* codec = avcodec_find_encoder_by_name(recipe_.codec);
  if (codec == nullptr) throw InputError("this libav is without {}", recipe_.codec);
  codec_ = required(CodecContext(avcodec_alloc_context3(codec)));
  codec_->width = static_cast<int>(request_.width);
  codec_->height = static_cast<int>(request_.height);
  codec_->pix_fmt = AV_PIX_FMT_YUV420P;
  codec_->time_base = to_rational(request_.fps.seconds, request_.fps.frames);
  codec_->framerate = to_rational(request_.fps.frames, request_.fps.seconds);
  codec_->sample_aspect_ratio = {1, 1};
  codec_->color_range = AVCOL_RANGE_MPEG;
  codec_->colorspace = AVCOL_SPC_BT709;
  codec_->color_primaries = AVCOL_PRI_BT709;
  codec_->color_trc = AVCOL_TRC_BT709;
  codec_->chroma_sample_location = AVCHROMA_LOC_LEFT;
  codec_->thread_count = threads_of(codec_->height, recipe_.most_threads);
  codec_->bit_rate = 0;  // crf alone decides
  codec_->flags |= AV_CODEC_FLAG_GLOBAL_HEADER | AV_CODEC_FLAG_BITEXACT;
  AVDictionary* options = nullptr;
  for (const auto& [key, value] : recipe_.codec_options) av_dict_set(&options, key, value, 0);
  av_dict_set_int(&options, "crf", request_.crf, 0);
  const int result = avcodec_open2(codec_.get(), codec, &options);
  const bool unread = av_dict_count(options) > 0;
  av_dict_free(&options);
  if (result < 0 || unread) {
    throw RunError("{}: does not encode {}x{} at {}/{}: {}", recipe_.codec, request_.width,
                   request_.height, request_.fps.frames, request_.fps.seconds,
                   unread ? "an option is unknown" : error_text(result));
  }
}

void FileEncoder::encode(const AVFrame* frame) {
  must(avcodec_send_frame(codec_.get(), frame), recipe_.codec);
  for (;;) {
    Packet packet = required(Packet(av_packet_alloc()));
    const int result = avcodec_receive_packet(codec_.get(), packet.get());
    if (result == AVERROR(EAGAIN) || result == AVERROR_EOF) return;
    must(result, recipe_.codec);
    if (packet->duration == 0) packet->duration = 1;
    packets_.push_back(std::move(packet));
  }
}

void FileEncoder::write(Output& output, const Tags& tags) {
  AVFormatContext* context = output.context();
  AVStream* stream = avformat_new_stream(context, nullptr);
  if (stream == nullptr) throw RunError("libav: out of memory");
  must(avcodec_parameters_from_context(stream->codecpar, codec_.get()), "codec parameters");
  stream->time_base = codec_->time_base;
  stream->avg_frame_rate = stream->r_frame_rate = codec_->framerate;
  for (const auto& [key, value] : tags)
    must(av_dict_set(&context->metadata, key.c_str(), value.c_str(), 0), "a tag");
  AVDictionary* options = nullptr;
  for (const auto& [key, value] : recipe_.muxer_options) av_dict_set(&options, key, value, 0);
  const int started = avformat_write_header(context, &options);
  av_dict_free(&options);
  must(started, recipe_.muxer);
  for (const Packet& packet : packets_) {
    packet->stream_index = stream->index;
    av_packet_rescale_ts(packet.get(), codec_->time_base, stream->time_base);
    must(av_write_frame(context, packet.get()), recipe_.muxer);
  }
  must(av_write_trailer(context), recipe_.muxer);
  avio_flush(context->pb);
  must(context->pb->error, recipe_.muxer);
}

}  // namespace

std::unique_ptr<Encoder> open_encoder(const EncoderRequest& request) {
  return std::make_unique<FileEncoder>(request);
}

std::string missing_encoder(ClipFormat format) {
  const char* codec = recipe_of(format).codec;
  return avcodec_find_encoder_by_name(codec) == nullptr ? codec : "";
}

}  // namespace diptych::libav
