#include "lib/media/video/folder_write.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>

#include <sys/stat.h>

#include "lib/base/atomic_file.h"
#include "lib/base/error.h"
#include "lib/base/frame_names.h"
#include "lib/media/file_bytes.h"
#include "lib/media/png.h"

namespace diptych {
namespace {

namespace fs = std::filesystem;

// Names what was asked for: the place that is written to is no user's.
void write_file(const fs::path& path, std::span<const std::uint8_t> bytes,
                const fs::path& asked_for) {
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> closer(std::fopen(path.c_str(), "wb"),
                                                               std::fclose);
  std::FILE* file = closer.get();
  const bool written = file != nullptr &&
                       std::fwrite(bytes.data(), 1, bytes.size(), file) == bytes.size() &&
                       std::fflush(file) == 0;
  if (!written) throw WriteError("{}: write failed: {}", asked_for.string(), std::strerror(errno));
}

constexpr std::size_t kTextsAt = 33;  // in a PNG: behind the signature and the header

// The chunks of these texts, as encode_png() makes them.
std::vector<std::uint8_t> text_chunks(const PictureTexts& texts) {
  static constexpr std::array<std::uint8_t, 4> kPixels = {'I', 'D', 'A', 'T'};
  const std::vector<std::uint8_t> png = encode_png(at::zeros({1, 1, 3}, at::kByte), texts);
  constexpr std::ptrdiff_t kLength = 4;  // in front of a chunk's name
  const auto begin = png.begin() + kTextsAt;
  // From the back: a text may hold the letters.
  const auto end = std::ranges::find_end(png, kPixels).begin() - kLength;
  return {begin, end};
}

}  // namespace

FolderWriter::FolderWriter(const fs::path& path, FrameRate fps) : path_(path), fps_(fps) {
  target_ = path.has_filename() ? path : path.parent_path();  // "frames/"
  require_place_for_frames(target_);
  std::error_code none;
  if (fs::exists(target_, none)) target_ = fs::canonical(target_);
  remove_abandoned_partials(target_);
  temporary_ = partial_path(target_);
  fs::remove_all(temporary_, none);  // of a process that had this number and was killed
  if (mkdir(temporary_.c_str(), 0777) != 0)
    throw InputError("{}: cannot be written: {}", path_.string(), std::strerror(errno));
}

FolderWriter::~FolderWriter() {
  std::error_code ignored;
  if (!temporary_.empty()) fs::remove_all(temporary_, ignored);
}

void FolderWriter::add(const Tensor& rgb) {
  const PictureTexts own = {{"frame", std::to_string(frames_)}, {"fps", frame_rate_text(fps_)}};
  write_file(temporary_ / frame_name(frames_), encode_png(rgb, own), path_);
  ++frames_;
}

void FolderWriter::finish(const PictureTexts& texts) {
  TORCH_CHECK(frames_ > 0, "[clip] no frame was added");
  if (!texts.empty()) {
    const std::vector<std::uint8_t> chunks = text_chunks(texts);
    for (std::int64_t i = 0; i < frames_; ++i) {
      const fs::path file = temporary_ / frame_name(i);
      std::vector<std::uint8_t> bytes = read_file_bytes(file);
      bytes.insert(bytes.begin() + kTextsAt, chunks.begin(), chunks.end());
      write_file(file, bytes, path_);
    }
  }
  rename();
}

void FolderWriter::rename() {
  std::error_code failure, not_put_back, ignored;
  require_place_for_frames(target_);
  fs::path aside;
  if (fs::exists(target_, ignored)) {
    aside = temporary_.string() + "-before";
    fs::rename(target_, aside, failure);
  }
  if (!failure) {
    fs::rename(temporary_, target_, failure);
    if (failure && !aside.empty()) fs::rename(aside, target_, not_put_back);
  }
  if (failure)
    throw WriteError("{}: write failed: {}{}", path_.string(), failure.message(),
                     not_put_back ? "; what was there is in " + aside.string() : "");
  temporary_.clear();
  if (!aside.empty()) fs::remove_all(aside, ignored);
}

}  // namespace diptych
