#include "lib/media/video/libav/tail.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <string_view>
#include <utility>
#include <vector>

#include "lib/media/video/libav/input.h"

namespace diptych::libav {
namespace {

constexpr std::array<std::string_view, 3> kRawStreams = {"h264", "mpegvideo", "m4v"};
constexpr std::size_t kMostPackets = 1000;

// The packets from the last key frame but one on: the first pictures behind a key frame may refer
// to some in front of it. None where they are too many.
std::vector<Packet> last_groups(Input& input) {
  std::vector<Packet> before, group;
  bool too_many = false;
  const Packet packet = required(Packet(av_packet_alloc()));
  for (;;) {
    const Input::Got got = input.read(packet.get());
    if (got == Input::Got::end) break;
    if (got == Input::Got::other) continue;
    if ((packet->flags & AV_PKT_FLAG_KEY) != 0) {
      before = std::exchange(group, {});
      too_many = false;
    }
    if (too_many) continue;
    group.push_back(required(Packet(av_packet_clone(packet.get()))));
    too_many = group.size() > kMostPackets;
    if (too_many) group.clear();
  }
  if (!too_many) std::ranges::move(group, std::back_inserter(before));
  return too_many ? std::vector<Packet>() : std::move(before);
}

// Of the frames that the decoder has. Pictures that a cut in front has left without those they
// refer to are whole all the same.
bool all_whole(AVCodecContext* codec, AVFrame* frame) {
  bool whole = true;
  while (avcodec_receive_frame(codec, frame) >= 0) {
    constexpr int kOfSlices = FF_DECODE_ERROR_DECODE_SLICES | FF_DECODE_ERROR_CONCEALMENT_ACTIVE;
    whole = whole && (frame->decode_error_flags & kOfSlices) == 0;
    av_frame_unref(frame);
  }
  return whole;
}

}  // namespace

bool is_raw_stream(std::string_view format) {
  return std::ranges::find(kRawStreams, format) != kRawStreams.end();
}

void require_whole_tail(const DecoderRequest& request) {
  Input input(request);
  const std::vector<Packet> groups = last_groups(input);
  const CodecContext codec = required(CodecContext(avcodec_alloc_context3(input.codec())));
  must(avcodec_parameters_to_context(codec.get(), input.stream()->codecpar), "codec parameters");
  codec->max_pixels = request.max_pixels;
  codec->thread_count = 1;
  // Pictures that refer to some in front of the key frame, too.
  codec->flags |= AV_CODEC_FLAG_OUTPUT_CORRUPT;
  codec->flags2 |= AV_CODEC_FLAG2_SHOW_ALL;
  if (avcodec_open2(codec.get(), input.codec(), nullptr) < 0) return;  // the reader says why
  const Frame frame = required(Frame(av_frame_alloc()));
  bool whole = true;
  for (const Packet& packet : groups) {
    if (request.interrupted()) throw InputError("{}: interrupted", request.name);
    avcodec_send_packet(codec.get(), packet.get());
    whole = all_whole(codec.get(), frame.get()) && whole;
  }
  avcodec_send_packet(codec.get(), nullptr);
  whole = all_whole(codec.get(), frame.get()) && whole;
  if (whole) return;
  throw InputError("{}: the file is cut off or damaged at its end: a picture is not whole",
                   request.name);
}

}  // namespace diptych::libav
