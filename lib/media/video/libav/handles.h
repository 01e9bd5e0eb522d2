// What libav allocates, as owners; and its errors.
#pragma once

#include <memory>
#include <string>

extern "C" {
#include <libavcodec/avcodec.h>
#include <libavformat/avformat.h>
#include <libavutil/avutil.h>
#include <libswscale/swscale.h>
}

#include "lib/base/error.h"

namespace diptych::libav {

// Deleters that take a pointer to the pointer.
template <auto free_function>
struct Free {
  template <typename Type>
  void operator()(Type* pointer) const {
    free_function(&pointer);
  }
};
struct FreeScaler {
  void operator()(SwsContext* scaler) const { sws_freeContext(scaler); }
};
struct FreeIo {
  void operator()(AVIOContext* io) const {
    av_freep(&io->buffer);
    avio_context_free(&io);
  }
};

using CodecContext = std::unique_ptr<AVCodecContext, Free<avcodec_free_context>>;
using InputContext = std::unique_ptr<AVFormatContext, Free<avformat_close_input>>;
using Frame = std::unique_ptr<AVFrame, Free<av_frame_free>>;
using Packet = std::unique_ptr<AVPacket, Free<av_packet_free>>;
using Scaler = std::unique_ptr<SwsContext, FreeScaler>;
using Io = std::unique_ptr<AVIOContext, FreeIo>;

// libav has told that it is out of memory by a null pointer.
template <typename Owner>
Owner required(Owner owner) {
  if (owner == nullptr) throw RunError("libav: out of memory");
  return owner;
}

inline std::string error_text(int error) {
  char text[AV_ERROR_MAX_STRING_SIZE] = {};
  av_strerror(error, text, sizeof(text));
  return text;
}

// Of what fails for want of memory or by a mistake of ours alone.
inline int must(int result, const char* what) {
  if (result < 0) throw RunError("libav: {}: {}", what, error_text(result));
  return result;
}

}  // namespace diptych::libav
