// What the program asks of libav, which it does not link: libav brings some 95 libraries along, so
// they are in a module of their own that is loaded when a clip needs it (libav_library.h). Plain
// bytes and numbers pass this border, and InputError and RunError; no torch.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "lib/base/clip_formats.h"
#include "lib/base/frame_rate.h"

namespace diptych::libav {

using Tags = std::vector<std::pair<std::string, std::string>>;

struct DecoderRequest {
  std::string name;    // for errors
  int descriptor = 0;  // of a regular file, open to read; it stays the caller's
  std::int64_t file_bytes = 0;
  std::int64_t max_pixels = 0;      // of a frame
  bool packets_only = false;        // every packet of the stream counts as a frame; no pixels
  bool (*interrupted)() = nullptr;  // makes reading fail early
};

struct StreamFacts {
  std::string format, codec, pixels;   // libav's names
  std::int64_t width = 0, height = 0;  // as stored
  int orientation = 1;                 // as EXIF numbers them
  std::optional<FrameRate> average_rate;
  std::optional<double> seconds;
  std::optional<std::int64_t> frames;  // as the container states
  Tags tags;                           // of the container
};

class Decoder {
 public:
  enum class Step { frame, more, end };

  virtual ~Decoder() = default;
  virtual const StreamFacts& facts() const = 0;
  // Works until a frame is there or a packet has been read. Throws InputError for a file that is
  // damaged or cut off.
  virtual Step step() = 0;
  // Of the frame that is there.
  virtual double seconds() const = 0;          // since the first frame
  virtual void pixels(std::uint8_t* rgb) = 0;  // width * height * 3, as stored
};

struct EncoderRequest {
  ClipFormat format = ClipFormat::mp4;  // or webm
  std::int64_t width = 0, height = 0;
  FrameRate fps;
  int crf = 0;
};

class Encoder {
 public:
  virtual ~Encoder() = default;
  virtual void add(const std::uint8_t* rgb) = 0;                   // width * height * 3
  virtual std::vector<std::uint8_t> finish(const Tags& tags) = 0;  // the file
};

struct Module {
  const char* version;  // of the program that it was built with
  std::unique_ptr<Decoder> (*open_decoder)(const DecoderRequest& request);
  std::unique_ptr<Encoder> (*open_encoder)(const EncoderRequest& request);
  // "libx264" where this libav is without the encoder that the format takes; "" = it has it.
  std::string (*missing_encoder)(ClipFormat format);
};

}  // namespace diptych::libav

extern "C" const diptych::libav::Module* diptych_libav_module();
