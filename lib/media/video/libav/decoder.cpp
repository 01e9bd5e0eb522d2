#include "lib/media/video/libav/decoder.h"

#include <algorithm>
#include <optional>
#include <thread>

#include "lib/media/video/libav/input.h"
#include "lib/media/video/libav/rgb.h"
#include "lib/media/video/libav/tail.h"

namespace diptych::libav {
namespace {

constexpr unsigned kMaxThreads = 8;  // each holds frames

[[noreturn]] void refuse(const std::string& name, const char* what, std::int64_t frames) {
  throw InputError("{}: the file is {} after {} {}", name, what, frames,
                   frames == 1 ? "frame" : "frames");
}

class PacketCounter : public Decoder {
 public:
  explicit PacketCounter(const DecoderRequest& request)
      : name_(request.name), input_(request), packet_(required(Packet(av_packet_alloc()))) {}

  const StreamFacts& facts() const override { return input_.facts(); }
  Step step() override {
    switch (input_.read(packet_.get())) {
      case Input::Got::packet:
        if ((packet_->flags & AV_PKT_FLAG_CORRUPT) != 0)
          refuse(name_, "broken or cut off", packets_);
        ++packets_;
        return Step::frame;
      case Input::Got::other:
        return Step::more;
      default:
        return Step::end;
    }
  }
  double seconds() const override { return 0; }
  void pixels(std::uint8_t*) override { throw RunError("libav: packets have no pixels"); }

 private:
  std::string name_;
  Input input_;
  Packet packet_;
  std::int64_t packets_ = 0;
};

class FrameDecoder : public Decoder {
 public:
  explicit FrameDecoder(const DecoderRequest& request)
      : request_(request),
        input_(request),
        scaler_(input_.facts().width, input_.facts().height),
        packet_(required(Packet(av_packet_alloc()))),
        frame_(required(Frame(av_frame_alloc()))) {
    open_codec();
  }

  const StreamFacts& facts() const override { return input_.facts(); }
  Step step() override;
  double seconds() const override { return seconds_; }
  void pixels(std::uint8_t* rgb) override {
    try {
      scaler_.convert(*frame_, rgb);
    } catch (const InputError& error) {
      throw InputError("{}: {}", request_.name, error.what());
    }
  }

 private:
  void open_codec();
  Step receive();
  Step feed();
  void send(const AVPacket* packet);
  void take_time();
  [[noreturn]] void damaged(const char* what) const { refuse(request_.name, what, frames_); }

  DecoderRequest request_;
  Input input_;
  RgbScaler scaler_;
  CodecContext codec_;
  Packet packet_;
  Frame frame_;
  std::int64_t frames_ = 0;
  std::optional<std::int64_t> first_time_;  // in the stream's time base
  double seconds_ = 0;
  bool drained_ = false;
};

void FrameDecoder::open_codec() {
  codec_ = required(CodecContext(avcodec_alloc_context3(input_.codec())));
  must(avcodec_parameters_to_context(codec_.get(), input_.stream()->codecpar), "codec parameters");
  codec_->pkt_timebase = input_.stream()->time_base;
  codec_->max_pixels = request_.max_pixels;
  codec_->thread_count =
      static_cast<int>(std::clamp(std::thread::hardware_concurrency(), 1u, kMaxThreads));
  const int result = avcodec_open2(codec_.get(), input_.codec(), nullptr);
  if (result < 0) {
    throw InputError("{}: its {} video cannot be decoded: {}", request_.name, input_.facts().codec,
                     error_text(result));
  }
}

Decoder::Step FrameDecoder::step() {
  const Step got = receive();
  return got == Step::more ? feed() : got;
}

// What a stream that begins within a group of pictures gives at first has errors in any player;
// that is passed over until a frame is without one.
Decoder::Step FrameDecoder::receive() {
  for (;;) {
    av_frame_unref(frame_.get());
    const int result = avcodec_receive_frame(codec_.get(), frame_.get());
    if (result == AVERROR(EAGAIN)) return Step::more;
    if (result == AVERROR_EOF) {
      if (frames_ == 0) throw InputError("{}: no frame of its video can be decoded", request_.name);
      return Step::end;
    }
    const bool clean = result >= 0 && frame_->decode_error_flags == 0 &&
                       (frame_->flags & AV_FRAME_FLAG_CORRUPT) == 0;
    if (clean) break;
    if (frames_ > 0) damaged("damaged");
    if (result < 0) return Step::more;
  }
  take_time();
  ++frames_;
  return Step::frame;
}

void FrameDecoder::take_time() {
  const std::int64_t time = frame_->best_effort_timestamp;
  if (time == AV_NOPTS_VALUE) {  // raw streams have none
    const auto rate = facts().average_rate;
    seconds_ = rate ? static_cast<double>(frames_) / rate->value() : 0;
    return;
  }
  if (!first_time_) first_time_ = time;
  // As doubles: what a damaged file states may be as far apart as integers go.
  seconds_ = (static_cast<double>(time) - static_cast<double>(*first_time_)) *
             av_q2d(input_.stream()->time_base);
}

Decoder::Step FrameDecoder::feed() {
  switch (input_.read(packet_.get())) {
    case Input::Got::packet:
      if ((packet_->flags & AV_PKT_FLAG_CORRUPT) != 0) damaged("broken or cut off");
      send(packet_.get());
      return Step::more;
    case Input::Got::other:
      return Step::more;
    default:
      if (!drained_) send(nullptr);
      drained_ = true;
      return Step::more;
  }
}

// All frames were received before, so there is room.
void FrameDecoder::send(const AVPacket* packet) {
  const int result = avcodec_send_packet(codec_.get(), packet);
  if (result == AVERROR(ENOMEM))
    throw RunError("{}: out of memory while reading it", request_.name);
  if (result < 0 && frames_ > 0) damaged("damaged");
}

}  // namespace

std::unique_ptr<Decoder> open_decoder(const DecoderRequest& request) {
  std::unique_ptr<Decoder> decoder;
  if (request.packets_only) {
    decoder = std::make_unique<PacketCounter>(request);
  } else {
    decoder = std::make_unique<FrameDecoder>(request);
  }
  if (is_raw_stream(decoder->facts().format)) require_whole_tail(request);
  return decoder;
}

}  // namespace diptych::libav
