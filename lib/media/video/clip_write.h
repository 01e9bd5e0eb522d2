// Clips on their way out, in any of the formats of base/clip_formats.h.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <vector>

#include "lib/base/clip_formats.h"
#include "lib/base/frame_rate.h"
#include "lib/media/image.h"
#include "lib/tensor/types.h"

namespace diptych {

// mp4   H.264 (x264, preset medium), yuv420p, BT.709 limited range and tagged so, index in front.
// webm  VP9 (libvpx), likewise.
// gif   a palette of 256 colours per frame; without loss where a frame has no more. Loops for ever.
// webp  animated WebP, loops for ever.
// png   a folder of frame_00000.png ...: without loss.
struct ClipEncoding {
  ClipFormat format = ClipFormat::mp4;
  FrameRate fps{24, 1};
  std::optional<int> crf{};  // of mp4 and webm; absent: facts_of(format).crf->usual
  int quality = 95;          // of webp, 1 to 99; 100: lossless
};

// Throws InputError where this cannot be written: naming the setting "fps", "crf", "quality",
// "width" or "height" where that is the reason, else the library that this build or machine lacks.
// To be asked before frames are made.
void require_writable_clip(const ClipEncoding& encoding, ImageSize size);

// Encodes on a thread of its own while the caller makes the next frames; add() waits while
// kQueuedFrames are waiting to be encoded. The same frames, texts and encoding give the same bytes
// with the same libraries.
class ClipEncoder {
 public:
  static constexpr std::size_t kQueuedFrames = 8;

  // Not of a folder. Throws as require_writable_clip().
  ClipEncoder(const ClipEncoding& encoding, ImageSize size);
  ~ClipEncoder();  // without finish(): stops, nothing is left
  ClipEncoder(ClipEncoder&&) noexcept;
  ClipEncoder& operator=(ClipEncoder&&) noexcept;

  // uint8 [height, width, 3] or [frames, height, width, 3], any device; may be changed afterwards.
  // Throws what went wrong in the thread.
  void add(const Tensor& frames);
  // The file; at least one frame must have been added. `texts`: clip_texts.h says where they go.
  std::vector<std::uint8_t> finish(const PictureTexts& texts);

  class Work;

 private:
  std::unique_ptr<Work> work_;
};

// The same into a file or, of ClipFormat::png, a folder: written beside its place, then renamed
// (base/atomic_file.h). Without finish() nothing is left. A folder that stands there is replaced
// where it is empty or holds only frames of an earlier clip; InputError otherwise.
class ClipWriter {
 public:
  ClipWriter(const std::filesystem::path& path, const ClipEncoding& encoding, ImageSize size);
  ~ClipWriter();
  ClipWriter(ClipWriter&&) noexcept;
  ClipWriter& operator=(ClipWriter&&) noexcept;

  void add(const Tensor& frames);          // as ClipEncoder
  void finish(const PictureTexts& texts);  // throws WriteError, too

  class Target;

 private:
  std::unique_ptr<Target> target_;
};

}  // namespace diptych
