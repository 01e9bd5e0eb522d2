#include "lib/media/video/clip_read.h"

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <numeric>
#include <utility>

#include <sys/stat.h>

#include "lib/base/error.h"
#include "lib/base/file_kind.h"
#include "lib/base/frame_names.h"
#include "lib/base/interrupt.h"
#include "lib/base/text_file.h"
#include "lib/media/file_bytes.h"
#include "lib/media/gif_blocks.h"
#include "lib/media/image_read.h"
#include "lib/media/video/clip_source.h"
#include "lib/media/video/clip_start.h"
#include "lib/media/video/clip_texts.h"
#include "lib/media/webp.h"

namespace diptych {
namespace {

namespace fs = std::filesystem;

struct Start {
  bool folder = false;
  std::uint64_t file_bytes = 0;
  std::vector<std::uint8_t> bytes;  // the first kStartBytes
};

Start start_of(const fs::path& path) {
  struct stat found {};
  if (stat(path.c_str(), &found) != 0)
    throw InputError("{}: cannot be read: {}", path.string(), std::strerror(errno));
  Start start;
  start.folder = S_ISDIR(found.st_mode);
  if (start.folder) return start;
  if (!S_ISREG(found.st_mode)) {
    throw InputError("{}: is a {}, expected a file", path.string(), file_kind(found.st_mode));
  }
  start.file_bytes = static_cast<std::uint64_t>(found.st_size);
  const std::string text = read_text_start(path, kStartBytes);
  start.bytes.assign(text.begin(), text.end());
  return start;
}

std::unique_ptr<ClipReader::Source> open_source(const fs::path& path, const ClipLimits& limits) {
  const Start start = start_of(path);
  if (start.folder) return open_frame_folder(path, limits);
  if (start.bytes.empty()) throw InputError("{}: empty, expected a clip", path.string());
  const auto picture = picture_format(start.bytes);
  if (picture == PictureFormat::webp) return open_webp_clip(path, limits);
  if (picture && picture != PictureFormat::gif)
    throw InputError("{}: a {} picture, expected a clip", path.string(), facts_of(*picture).name);
  return open_libav_clip(path, limits);
}

}  // namespace

void check_frame_size(std::int64_t width, std::int64_t height, const ClipLimits& limits,
                      std::string_view name) {
  if (width <= limits.max_pixels / std::max<std::int64_t>(height, 1)) return;
  throw InputError("{}: frames of {}x{} pixels, at most {} pixels are read", name, width, height,
                   limits.max_pixels);
}

std::optional<FrameRate> rate_of_ticks(std::int64_t frames, std::int64_t ticks,
                                       std::int64_t per_second) {
  if (frames <= 0 || ticks <= 0) return std::nullopt;
  const double exact = static_cast<double>(frames * per_second) / static_cast<double>(ticks);
  const double whole = std::round(exact);
  const double end = whole > 0 ? static_cast<double>(frames * per_second) / whole : 0;
  if (std::abs(end - static_cast<double>(ticks)) <= 0.5)
    return FrameRate{static_cast<std::int64_t>(whole), 1};
  const std::int64_t common = std::gcd(frames * per_second, ticks);
  return FrameRate{frames * per_second / common, ticks / common};
}

ClipReader::ClipReader(fs::path path, const ClipLimits& limits)
    : source_(open_source(path, limits)), limits_(limits), name_(path.string()) {}
ClipReader::~ClipReader() = default;
ClipReader::ClipReader(ClipReader&&) noexcept = default;
ClipReader& ClipReader::operator=(ClipReader&&) noexcept = default;

const ClipFacts& ClipReader::facts() const {
  return source_->facts();
}

std::int64_t ClipReader::position() const {
  return position_;
}

bool ClipReader::skip() {
  check_interrupted();
  if (!source_->advance()) return false;
  if (position_ == limits_.max_frames)
    throw InputError("{}: more than {} frames, which are not read", name_, limits_.max_frames);
  ++position_;
  return true;
}

std::optional<ClipFrame> ClipReader::next() {
  if (!skip()) return std::nullopt;
  return source_->frame();
}

bool is_clip(const fs::path& path) {
  const Start start = start_of(path);
  if (start.folder) {
    std::error_code none;
    return fs::exists(path / frame_name(0), none);
  }
  if (is_animated_webp(start.bytes)) return true;
  const auto picture = picture_format(start.bytes);
  if (picture == PictureFormat::gif) {
    const GifBlocks gif = read_gif_blocks(read_file_bytes(path));
    return gif.frames > 1 || recorded_rate(texts_of_comments(gif.comments)).has_value();
  }
  if (picture == PictureFormat::webp)
    return recorded_rate(webp_texts(read_file_bytes(path))).has_value();
  return !picture && (begins_as_video(start.bytes) || named_as_video(path));
}

std::int64_t count_clip_frames(const fs::path& path, const ClipLimits& limits) {
  ClipReader clip(path, limits);
  while (clip.skip()) {
  }
  return clip.position();
}

std::int64_t count_clip_packets(const fs::path& path, const ClipLimits& limits) {
  const Start start = start_of(path);
  const bool libav = !start.folder && picture_format(start.bytes) != PictureFormat::webp;
  return libav ? count_libav_packets(path, limits) : count_clip_frames(path, limits);
}

Tensor read_clip_frames(const fs::path& path, std::span<const std::int64_t> indices,
                        const ClipLimits& limits) {
  ClipReader clip(path, limits);
  const auto [height, width] = clip.facts().size;
  const Tensor all =
      at::empty({static_cast<std::int64_t>(indices.size()), height, width, 3}, at::kByte);
  for (std::size_t i = 0; i < indices.size(); ++i) {
    const auto row = static_cast<std::int64_t>(i);
    if (i > 0 && indices[i] == indices[i - 1]) {
      all[row].copy_(all[row - 1]);
      continue;
    }
    TORCH_CHECK(indices[i] >= clip.position(), "[clip] indices must not fall, got ", indices[i]);
    while (clip.position() < indices[i] && clip.skip()) {
    }
    const auto frame = clip.next();
    if (!frame) {
      throw InputError("{}: frame {} was asked for, but it has {} frames", path.string(),
                       indices[i], clip.position());
    }
    all[row].copy_(frame->rgb);
  }
  return all;
}

Tensor read_clip(const fs::path& path, const ClipLimits& limits) {
  ClipReader clip(path, limits);
  std::vector<Tensor> frames;
  while (auto frame = clip.next()) frames.push_back(std::move(frame->rgb));
  return at::stack(frames);
}

PictureTexts read_clip_texts(const fs::path& path) {
  return ClipReader(path).facts().texts;
}

}  // namespace diptych
