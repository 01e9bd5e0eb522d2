// A file that a muxer writes into memory.
#pragma once

#include <cstdint>
#include <vector>

#include "lib/media/video/libav/handles.h"
#include "lib/media/video/libav/module.h"

namespace diptych::libav {

struct FreeOutput {
  void operator()(AVFormatContext* context) const { avformat_free_context(context); }
};

class Output {
 public:
  explicit Output(const char* format);  // libav's name
  Output(const Output&) = delete;
  Output& operator=(const Output&) = delete;

  AVFormatContext* context() const { return context_.get(); }
  std::vector<std::uint8_t> take() { return std::move(bytes_); }

 private:
  struct Cursor {
    std::vector<std::uint8_t>* bytes;
    std::size_t at = 0;
  };
  static Io make_io(Cursor* cursor, bool writes);
  static int read(void* cursor, std::uint8_t* buffer, int count);
  static int write(void* cursor, const std::uint8_t* buffer, int count);
  static std::int64_t seek(void* cursor, std::int64_t offset, int whence);
  static int open_again(AVFormatContext* context, AVIOContext** io, const char*, int flags,
                        AVDictionary**);
  static int close_again(AVFormatContext*, AVIOContext* io);

  std::vector<std::uint8_t> bytes_;
  Cursor written_{&bytes_}, read_{&bytes_};
  Io io_;
  std::unique_ptr<AVFormatContext, FreeOutput> context_;
};

}  // namespace diptych::libav
