#include "lib/media/video/libav/input.h"

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <string_view>

#include <unistd.h>

extern "C" {
#include <libavutil/display.h>
#include <libavutil/opt.h>
#include <libavutil/pixdesc.h>
}

namespace diptych::libav {
namespace {

constexpr int kIoBytes = 1 << 16;

// Lists of other files, of which a file from outside must open none, and text that libav would
// paint. Pictures are no clips.
constexpr std::array<std::string_view, 12> kRefused = {
    "hls",    "concat", "dash", "webm_dash_manifest", "sdp", "rtsp", "rtp", "imf",
    "image2", "tty",    "bin",  "ffmetadata"};

// A file refers to another one.
int refuse_to_open(AVFormatContext*, AVIOContext**, const char*, int, AVDictionary**) {
  return AVERROR(EACCES);
}

[[noreturn]] void refuse_picture(const std::string& name) {
  throw InputError("{}: a picture, expected a clip", name);
}

const AVInputFormat* probe(AVIOContext* io, const std::string& name) {
  const AVInputFormat* format = nullptr;
  // Without a name: the content decides.
  const int result = av_probe_input_buffer2(io, &format, "", nullptr, 0, 0);
  if (result < 0 || format == nullptr) throw InputError("{}: not a clip that libav knows", name);
  const std::string_view kind = format->name;
  if (kind.ends_with("_pipe")) refuse_picture(name);
  if (std::ranges::find(kRefused, kind) != kRefused.end())
    throw InputError("{}: not a clip ({})", name, format->long_name);
  return format;
}

bool is_cover(const AVStream* stream) {
  constexpr int kCovers = AV_DISPOSITION_ATTACHED_PIC | AV_DISPOSITION_TIMED_THUMBNAILS;
  return (stream->disposition & kCovers) != 0;
}

const std::int32_t* display_matrix(const AVStream* stream) {
#if LIBAVCODEC_VERSION_MAJOR >= 61
  const AVPacketSideData* data =
      av_packet_side_data_get(stream->codecpar->coded_side_data,
                              stream->codecpar->nb_coded_side_data, AV_PKT_DATA_DISPLAYMATRIX);
  return data == nullptr ? nullptr : reinterpret_cast<const std::int32_t*>(data->data);
#else
  return reinterpret_cast<const std::int32_t*>(
      av_stream_get_side_data(stream, AV_PKT_DATA_DISPLAYMATRIX, nullptr));
#endif
}

// As EXIF numbers them: the quarter turn nearest to the matrix, and whether it mirrors. The matrix
// maps (x, y) of the stored frame to (a x + c y, b x + d y) of the shown one, y downwards.
int orientation_of(const std::int32_t* matrix) {
  if (matrix == nullptr) return 1;
  const std::int64_t a = matrix[0], b = matrix[1], c = matrix[3], d = matrix[4];
  const bool swaps = std::abs(b) + std::abs(c) > std::abs(a) + std::abs(d);
  if (!swaps) return d >= 0 ? (a >= 0 ? 1 : 2) : (a >= 0 ? 4 : 3);
  return c >= 0 ? (b >= 0 ? 5 : 8) : (b >= 0 ? 6 : 7);
}

std::optional<FrameRate> rate_of(AVRational rate) {
  if (rate.num <= 0 || rate.den <= 0) return std::nullopt;
  return FrameRate{rate.num, rate.den};
}

Tags tags_of(const AVDictionary* metadata) {
  Tags tags;
  const AVDictionaryEntry* entry = nullptr;
  while ((entry = av_dict_get(metadata, "", entry, AV_DICT_IGNORE_SUFFIX)) != nullptr)
    tags.emplace_back(entry->key, entry->value);
  return tags;
}

}  // namespace

Input::Input(const DecoderRequest& request) : request_(request) {
  open();
  choose_stream();
  check_index();
  fill_facts();
}

int Input::read_bytes(void* self, std::uint8_t* buffer, int bytes) {
  auto* input = static_cast<Input*>(self);
  if (input->request_.interrupted()) return AVERROR_EXIT;
  const ssize_t count =
      pread(input->request_.descriptor, buffer, static_cast<std::size_t>(bytes), input->position_);
  if (count < 0) return AVERROR(errno);
  if (count == 0) return AVERROR_EOF;
  input->position_ += count;
  return static_cast<int>(count);
}

std::int64_t Input::seek(void* self, std::int64_t offset, int whence) {
  auto* input = static_cast<Input*>(self);
  const std::int64_t size = input->request_.file_bytes;
  if ((whence & AVSEEK_SIZE) != 0) return size;
  const int from = whence & ~AVSEEK_FORCE;
  const std::int64_t base = from == SEEK_CUR ? input->position_ : from == SEEK_END ? size : 0;
  if (offset < -base || offset > INT64_MAX - base) return AVERROR(EINVAL);
  return input->position_ = base + offset;
}

void Input::open() {
  auto* buffer = static_cast<std::uint8_t*>(av_malloc(kIoBytes));
  if (buffer == nullptr) throw RunError("libav: out of memory");
  io_ = Io(avio_alloc_context(buffer, kIoBytes, 0, this, read_bytes, nullptr, seek));
  if (io_ == nullptr) av_free(buffer);
  io_ = required(std::move(io_));
  const AVInputFormat* format = probe(io_.get(), request_.name);
  AVFormatContext* context = avformat_alloc_context();
  if (context == nullptr) throw RunError("libav: out of memory");
  context->pb = io_.get();
  context->flags |= AVFMT_FLAG_CUSTOM_IO;
  context->io_open = refuse_to_open;
  AVDictionary* options = nullptr;
  av_dict_set(&options, "protocol_whitelist", "none", 0);
  const int result = avformat_open_input(&context, "", format, &options);  // frees it on failure
  av_dict_free(&options);
  if (result < 0) {
    throw InputError("{}: a broken or cut off {} file: {}", request_.name, format->long_name,
                     error_text(result));
  }
  context_.reset(context);
}

void Input::choose_stream() {
  // What is decoded to learn about the streams obeys the limit, too.
  std::vector<AVDictionary*> options(context_->nb_streams, nullptr);
  for (AVDictionary*& each : options) {
    av_dict_set_int(&each, "max_pixels", request_.max_pixels, 0);
    av_dict_set(&each, "threads", "1", 0);
  }
  const int result = avformat_find_stream_info(context_.get(), options.data());
  for (AVDictionary*& each : options) av_dict_free(&each);
  if (result < 0) {
    throw InputError("{}: a broken or cut off {} file: {}", request_.name,
                     context_->iformat->long_name, error_text(result));
  }
  bool cover = false, sound = false;
  int found = av_find_best_stream(context_.get(), AVMEDIA_TYPE_VIDEO, -1, -1, nullptr, 0);
  for (unsigned i = 0; i < context_->nb_streams; ++i) {
    const AVStream* each = context_->streams[i];
    const AVMediaType type = each->codecpar->codec_type;
    sound = sound || type == AVMEDIA_TYPE_AUDIO;
    if (type != AVMEDIA_TYPE_VIDEO) continue;
    cover = cover || is_cover(each);
    if (found < 0 || (is_cover(context_->streams[found]) && !is_cover(each)))
      found = static_cast<int>(i);
  }
  if (found < 0 || is_cover(context_->streams[found])) {
    throw InputError("{}: holds {}, expected a clip", request_.name,
                     sound   ? (cover ? "sound with a cover picture" : "sound alone")
                     : cover ? "a cover picture alone"
                             : "no video");
  }
  stream_ = context_->streams[found];
  for (unsigned i = 0; i < context_->nb_streams; ++i) {
    if (static_cast<int>(i) != found) context_->streams[i]->discard = AVDISCARD_ALL;
  }
  codec_ = avcodec_find_decoder(stream_->codecpar->codec_id);
  if (codec_ == nullptr) {
    throw InputError("{}: its codec {} is not one that this libav decodes", request_.name,
                     avcodec_get_name(stream_->codecpar->codec_id));
  }
}

// The index of MP4 and its like has every sample.
void Input::check_index() const {
  if (!std::string_view(context_->iformat->name).starts_with("mov,")) return;
  const int entries = avformat_index_get_entries_count(stream_);
  int whole = 0;
  bool cut = false;
  for (int i = 0; i < entries; ++i) {
    const AVIndexEntry* entry = avformat_index_get_entry(stream_, i);
    const bool fits = entry->pos >= 0 && entry->pos <= request_.file_bytes - entry->size;
    cut = cut || !fits;
    whole += cut ? 0 : 1;
  }
  if (cut) {
    throw InputError("{}: the file is cut off: it ends after {} frame{}", request_.name, whole,
                     whole == 1 ? "" : "s");
  }
}

void Input::fill_facts() {
  const AVCodecParameters* parameters = stream_->codecpar;
  facts_.format = context_->iformat->name;
  facts_.codec = avcodec_get_name(parameters->codec_id);
  const char* pixels = av_get_pix_fmt_name(static_cast<AVPixelFormat>(parameters->format));
  facts_.pixels = pixels == nullptr ? "" : pixels;
  facts_.width = parameters->width;
  facts_.height = parameters->height;
  if (facts_.width < 1 || facts_.height < 1)
    throw InputError("{}: no frame of its video can be decoded", request_.name);
  if (facts_.width > request_.max_pixels / facts_.height) {
    throw InputError("{}: frames of {}x{} pixels, at most {} pixels are read", request_.name,
                     facts_.width, facts_.height, request_.max_pixels);
  }
  facts_.orientation = orientation_of(display_matrix(stream_));
  facts_.average_rate = rate_of(stream_->avg_frame_rate);
  if (!facts_.average_rate)
    facts_.average_rate = rate_of(stream_->r_frame_rate);  // of Ogg, for one
  if (stream_->duration > 0 && stream_->duration != AV_NOPTS_VALUE) {
    facts_.seconds = static_cast<double>(stream_->duration) * av_q2d(stream_->time_base);
  } else if (context_->duration > 0 && context_->duration != AV_NOPTS_VALUE) {
    facts_.seconds = static_cast<double>(context_->duration) / AV_TIME_BASE;
  }
  if (stream_->nb_frames > 0) facts_.frames = stream_->nb_frames;
  facts_.tags = tags_of(context_->metadata);
}

Input::Got Input::read(AVPacket* packet) {
  av_packet_unref(packet);
  const int result = av_read_frame(context_.get(), packet);
  if (result == AVERROR_EOF) return Got::end;
  if (result < 0) throw InputError("{}: broken or cut off: {}", request_.name, error_text(result));
  // Damage can make a demuxer go back to what it has read; each packet takes some of the file.
  ++packets_;
  packet_bytes_ += packet->size;
  constexpr std::int64_t kSlack = 1 << 20;
  if (packets_ > request_.file_bytes || packet_bytes_ > 4 * request_.file_bytes + kSlack)
    throw InputError("{}: broken: its frames have no end", request_.name);
  if (packet->stream_index != stream_->index) return Got::other;
  return Got::packet;
}

}  // namespace diptych::libav
