#include "lib/media/video/libav/output.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <exception>

namespace diptych::libav {
namespace {

constexpr int kIoBytes = 1 << 16;

}  // namespace

Output::Output(const char* format) {
  io_ = make_io(&written_, true);
  AVFormatContext* context = nullptr;
  must(avformat_alloc_output_context2(&context, nullptr, format, nullptr), format);
  context_.reset(context);
  context_->pb = io_.get();
  context_->flags |= AVFMT_FLAG_CUSTOM_IO | AVFMT_FLAG_BITEXACT;
  // An MP4 with its index in front is read once more, to be moved behind it.
  context_->opaque = this;
  context_->io_open = open_again;
  context_->io_close2 = close_again;
}

Io Output::make_io(Cursor* cursor, bool writes) {
  auto* buffer = static_cast<std::uint8_t*>(av_malloc(kIoBytes));
  if (buffer == nullptr) throw RunError("libav: out of memory");
#if LIBAVFORMAT_VERSION_MAJOR < 61
  const auto write_bytes = [](void* to, std::uint8_t* bytes, int count) {
    return write(to, bytes, count);
  };
#else
  const auto write_bytes = write;
#endif
  AVIOContext* io =
      writes ? avio_alloc_context(buffer, kIoBytes, 1, cursor, nullptr, write_bytes, seek)
             : avio_alloc_context(buffer, kIoBytes, 0, cursor, read, nullptr, seek);
  if (io == nullptr) av_free(buffer);
  return required(Io(io));
}

int Output::read(void* cursor, std::uint8_t* buffer, int count) {
  auto& [bytes, at] = *static_cast<Cursor*>(cursor);
  const std::size_t there =
      std::min(static_cast<std::size_t>(count), bytes->size() - std::min(at, bytes->size()));
  if (there == 0) return AVERROR_EOF;
  std::memcpy(buffer, bytes->data() + at, there);
  at += there;
  return static_cast<int>(there);
}

int Output::write(void* cursor, const std::uint8_t* buffer, int count) {
  auto& [bytes, at] = *static_cast<Cursor*>(cursor);
  const auto size = static_cast<std::size_t>(count);
  try {  // no exception may cross libav's C frames
    if (at + size > bytes->size()) bytes->resize(at + size);
  } catch (const std::exception&) {
    return AVERROR(ENOMEM);
  }
  std::memcpy(bytes->data() + at, buffer, size);
  at += size;
  return count;
}

std::int64_t Output::seek(void* cursor, std::int64_t offset, int whence) {
  auto& [bytes, at] = *static_cast<Cursor*>(cursor);
  const auto size = static_cast<std::int64_t>(bytes->size());
  if ((whence & AVSEEK_SIZE) != 0) return size;
  const int from = whence & ~AVSEEK_FORCE;
  const std::int64_t base = from == SEEK_CUR   ? static_cast<std::int64_t>(at)
                            : from == SEEK_END ? size
                                               : 0;
  if (base + offset < 0) return AVERROR(EINVAL);
  at = static_cast<std::size_t>(base + offset);
  return base + offset;
}

int Output::open_again(AVFormatContext* context, AVIOContext** io, const char*, int flags,
                       AVDictionary**) {
  if ((flags & AVIO_FLAG_WRITE) != 0) return AVERROR(EACCES);
  auto* output = static_cast<Output*>(context->opaque);
  try {
    output->read_.at = 0;
    *io = make_io(&output->read_, false).release();
    return 0;
  } catch (const std::exception&) {
    return AVERROR(ENOMEM);
  }
}

int Output::close_again(AVFormatContext*, AVIOContext* io) {
  FreeIo()(io);
  return 0;
}

}  // namespace diptych::libav
