// An open container and its video stream.
#pragma once

#include <array>
#include <cstdint>

#include "lib/media/video/libav/handles.h"
#include "lib/media/video/libav/module.h"

namespace diptych::libav {

class Input {
 public:
  // Throws InputError for what is no clip, is cut off as far as its own index tells, or has frames
  // over the limit.
  explicit Input(const DecoderRequest& request);
  Input(const Input&) = delete;
  Input& operator=(const Input&) = delete;

  AVFormatContext* context() const { return context_.get(); }
  AVStream* stream() const { return stream_; }
  const AVCodec* codec() const { return codec_; }
  const StreamFacts& facts() const { return facts_; }

  // The next packet of the stream; false: another one was there, or none.
  enum class Got { packet, other, end };
  Got read(AVPacket* packet);

 private:
  static int read_bytes(void* self, std::uint8_t* buffer, int bytes);
  static std::int64_t seek(void* self, std::int64_t offset, int whence);
  void open();
  void choose_stream();
  void check_index() const;
  void fill_facts();

  DecoderRequest request_;
  std::int64_t position_ = 0;
  std::int64_t packets_ = 0, packet_bytes_ = 0;  // that were read, of any stream
  Io io_;
  InputContext context_;
  AVStream* stream_ = nullptr;
  const AVCodec* codec_ = nullptr;
  StreamFacts facts_;
};

}  // namespace diptych::libav
