// Clips that a user gives: any container and codec that libav reads, WebP, and folders of PNG
// frames. The content decides, not the name.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "lib/base/frame_rate.h"
#include "lib/media/image.h"
#include "lib/tensor/types.h"

namespace diptych {

// What a clip may be at most.
struct ClipLimits {
  std::int64_t max_frames = 100'000;
  std::int64_t max_pixels = std::int64_t{1} << 26;  // of a frame
};

struct ClipFacts {
  std::string format;  // libav's name of the container: "mov,mp4,m4a,3gp,3g2,mj2", "matroska,webm";
                       // "webp"; "png" of a folder
  std::string codec;   // libav's name: "h264", "vp9", "gif"; "webp"; "png"
  std::string pixels;  // as stored: "yuv420p10le"
  ImageSize size;      // upright
  int orientation = 1;                    // EXIF's number of how the stored frames are turned
  std::optional<FrameRate> average_rate;  // absent where the file states none
  std::optional<double> seconds;          // likewise, of the whole clip
  std::optional<std::int64_t> frames;     // likewise; what is read may differ where the file lies
  PictureTexts texts;                     // clip_texts.h
};

struct ClipFrame {
  Tensor rgb;          // uint8 [height, width, 3] on the CPU, of facts().size
  double seconds = 0;  // when it is shown; the first frame's is 0
};

// Frames in the order they are shown, each once however long it stays (variable frame rate).
// Rotation and mirroring (display matrix, EXIF) are applied; 10 and 12 bits, any subsampling,
// matrix and range become RGB as ffmpeg -pix_fmt rgb24 and decord make it, without tone mapping;
// a stream that states no matrix is BT.601. Pixels are not stretched where they are not square. A
// frame of another size than the first is scaled to it.
//
// Throws InputError with the file's name for one that is missing, no regular file, empty, a
// picture, without video, cut off or damaged ("ends after 12 frames"), over the limits, in a format
// whose library this build or machine lacks, and Interrupted when a signal has come.
class ClipReader {
 public:
  explicit ClipReader(std::filesystem::path path, const ClipLimits& limits = {});
  ~ClipReader();
  ClipReader(ClipReader&&) noexcept;
  ClipReader& operator=(ClipReader&&) noexcept;

  const ClipFacts& facts() const;
  std::optional<ClipFrame> next();  // nothing behind the last frame
  bool skip();                      // a frame whose pixels nobody needs; false behind the last
  std::int64_t position() const;    // how many frames have been read or skipped

  class Source;  // a kind of clip

 private:
  std::unique_ptr<Source> source_;
  ClipLimits limits_;
  std::string name_;  // for errors
  std::int64_t position_ = 0;
};

// Whether this is a clip rather than a picture: a folder with PNG files, an animated WebP, a GIF of
// more than one frame, either of one frame with a record of a clip, or a file that begins as a
// container of video does or has such a name. Looks at no frame. Throws InputError for what cannot
// be read.
bool is_clip(const std::filesystem::path& path);

// How many frames there are: by decoding, so that it is what ClipReader gives.
std::int64_t count_clip_frames(const std::filesystem::path& path, const ClipLimits& limits = {});
// The packets of the video stream, without decoding: what decord's len() says. The same number, but
// for containers that hide frames (edit lists).
std::int64_t count_clip_packets(const std::filesystem::path& path, const ClipLimits& limits = {});

// The frames with these indices in one pass: uint8 [indices, height, width, 3]. `indices` do not
// fall; one may be there more than once. Throws InputError, too, for an index behind the last
// frame.
Tensor read_clip_frames(const std::filesystem::path& path, std::span<const std::int64_t> indices,
                        const ClipLimits& limits = {});
Tensor read_clip(const std::filesystem::path& path, const ClipLimits& limits = {});  // every frame

// What the file says about itself, without decoding a frame. Throws as ClipReader.
PictureTexts read_clip_texts(const std::filesystem::path& path);

}  // namespace diptych
