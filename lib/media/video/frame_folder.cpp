#include "lib/media/video/frame_folder.h"

#include <algorithm>
#include <cctype>

#include "lib/base/error.h"
#include "lib/base/frame_names.h"
#include "lib/media/exif.h"
#include "lib/media/file_bytes.h"
#include "lib/media/png.h"
#include "lib/media/video/clip_source.h"

namespace diptych {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kFrameExtension = ".png";
constexpr std::string_view kFrameText = "frame", kRateText = "fps";
constexpr FrameRate kUnknownRate{24, 1};  // that of the writers, where nothing is said

bool is_digit(char c) {
  return std::isdigit(static_cast<unsigned char>(c)) != 0;
}

// Runs of digits by their value, everything else by its bytes.
bool comes_before(const fs::path& a, const fs::path& b) {
  const std::string left = a.filename().string(), right = b.filename().string();
  std::size_t i = 0, j = 0;
  const auto take_number = [](const std::string& text, std::size_t& at) {
    while (at < text.size() && text[at] == '0') ++at;
    const std::size_t begin = at;
    while (at < text.size() && is_digit(text[at])) ++at;
    return std::string_view(text).substr(begin, at - begin);
  };
  while (i < left.size() && j < right.size()) {
    if (is_digit(left[i]) && is_digit(right[j])) {
      const std::string_view one = take_number(left, i), other = take_number(right, j);
      if (one != other) return one.size() != other.size() ? one.size() < other.size() : one < other;
    } else if (left[i] != right[j]) {
      return left[i] < right[j];
    } else {
      ++i;
      ++j;
    }
  }
  const bool ended = i == left.size(), other_ended = j == right.size();
  return ended != other_ended ? ended : left < right;
}

// Frames that were written here are numbered from 0 without a gap. Other PNG files, and frames that
// other programs number from elsewhere, are left alone.
void require_every_frame(const std::vector<fs::path>& files) {
  std::int64_t frames = 0;
  for (const fs::path& file : files) {
    if (!is_frame_name(file.filename())) continue;
    const std::string expected = frame_name(frames++);
    if (file.filename() == expected) continue;
    if (frames == 1) return;
    throw InputError("{}: is missing; the next frame there is {}",
                     (file.parent_path() / expected).string(), file.filename().string());
  }
}

class FrameFolder : public ClipReader::Source {
 public:
  FrameFolder(const fs::path& folder, const ClipLimits& limits)
      : limits_(limits), files_(list_frames(folder)) {
    if (files_.empty())
      throw InputError("{}: a folder without PNG frames, expected a clip", folder.string());
    if (static_cast<std::int64_t>(files_.size()) > limits.max_frames) {
      throw InputError("{}: {} frames, at most {} are read", folder.string(), files_.size(),
                       limits.max_frames);
    }
    require_every_frame(files_);
    const Image first = read_png(files_.front());
    facts_.format = facts_.codec = "png";
    facts_.pixels = "rgb24";
    facts_.orientation = first.orientation;
    facts_.size = upright_size(first.rgb.size(0), first.rgb.size(1), first.orientation);
    check_frame_size(facts_.size.width, facts_.size.height, limits, files_.front().string());
    rate_ = kUnknownRate;
    for (const auto& [keyword, text] : first.text) {
      if (keyword == kRateText) rate_ = parse_frame_rate(text).value_or(kUnknownRate);
      if (keyword != kRateText && keyword != kFrameText) facts_.texts.emplace_back(keyword, text);
    }
    facts_.average_rate = rate_;
    facts_.frames = static_cast<std::int64_t>(files_.size());
    facts_.seconds = static_cast<double>(files_.size()) / rate_.value();
  }

  bool advance() override {
    if (at_ == files_.size()) return false;
    ++at_;
    return true;
  }

  ClipFrame frame() override {
    const fs::path& file = files_.at(at_ - 1);
    const std::vector<std::uint8_t> bytes = read_file_bytes(file);
    const ImageSize size = png_size(bytes, file.string());
    if (size.height != facts_.size.height || size.width != facts_.size.width) {
      throw InputError("{}: {}x{} pixels, expected {}x{} as the first frame", file.string(),
                       size.width, size.height, facts_.size.width, facts_.size.height);
    }
    const Image image = decode_png(bytes, file.string());
    return {upright(image.rgb, image.orientation), static_cast<double>(at_ - 1) / rate_.value()};
  }

 private:
  ClipLimits limits_;
  std::vector<fs::path> files_;
  FrameRate rate_;
  std::size_t at_ = 0;
};

}  // namespace

std::vector<fs::path> list_frames(const fs::path& folder) {
  std::vector<fs::path> files;
  for (const auto& entry : fs::directory_iterator(folder)) {
    std::string extension = entry.path().extension().string();
    std::ranges::transform(extension, extension.begin(),
                           [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
    const bool is_hidden = entry.path().filename().string().starts_with('.');
    if (extension != kFrameExtension || is_hidden) continue;
    std::error_code error;
    if (entry.is_regular_file(error)) files.push_back(entry.path());
    if (error) throw InputError("{}: cannot be read: {}", entry.path().string(), error.message());
  }
  std::ranges::sort(files, comes_before);
  return files;
}

std::unique_ptr<ClipReader::Source> open_frame_folder(const fs::path& path,
                                                      const ClipLimits& limits) {
  return std::make_unique<FrameFolder>(path, limits);
}

}  // namespace diptych
