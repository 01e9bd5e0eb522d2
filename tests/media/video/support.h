// What the tests of clips share: frames, and the ffmpeg program, which makes clips of other kinds
// and says what it thinks of ours.
#pragma once

#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <string>
#include <vector>

#include <ATen/ATen.h>
#include <doctest/doctest.h>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "lib/base/clip_formats.h"
#include "lib/base/error.h"
#include "lib/media/video/clip_write.h"
#include "tests/media/support.h"
#include "tests/support/folder.h"
#include "tests/support/skip.h"

namespace diptych::test {

// uint8 [frames, height, width, 3]: a gradient that moves, with a square that tells the frames
// apart.
inline Tensor moving_frames(std::int64_t frames, std::int64_t height, std::int64_t width) {
  const Tensor y = at::arange(height).reshape({1, height, 1, 1}),
               x = at::arange(width).reshape({1, 1, width, 1}),
               t = at::arange(frames).reshape({frames, 1, 1, 1}),
               c = at::arange(3).reshape({1, 1, 1, 3});
  Tensor all = (40 + ((x * (2 + c) + y * (3 - c) + t * 4) % 320 - 160).abs()).to(at::kByte);
  for (std::int64_t i = 0; i < frames; ++i) {
    all[i]
        .narrow(0, 0, std::min<std::int64_t>(height, 8))
        .narrow(1, 0, std::min<std::int64_t>(width, 8))
        .fill_(16 * (i % 16));
  }
  return all.contiguous();
}

// The output of a shell command; throws where it fails.
inline std::string output_of(const std::string& command) {
  std::FILE* pipe = popen(command.c_str(), "r");
  REQUIRE(pipe != nullptr);
  std::string text;
  std::array<char, 65'536> buffer;
  while (const std::size_t bytes = std::fread(buffer.data(), 1, buffer.size(), pipe))
    text.append(buffer.data(), bytes);
  if (pclose(pipe) != 0) throw std::runtime_error(fmt::format("failed: {}", command));
  return text;
}

inline bool have_ffmpeg() {
  static const bool kFound = std::system("ffmpeg -version >/dev/null 2>&1") == 0 &&
                             std::system("ffprobe -version >/dev/null 2>&1") == 0;
  return kFound;
}

// A clip made by ffmpeg from `arguments`, which end in front of the output's name.
inline std::filesystem::path make_clip(const Folder& folder, const std::string& name,
                                       const std::string& arguments) {
  const auto path = folder.path() / name;
  output_of(fmt::format("ffmpeg -nostdin -v error -y {} '{}'", arguments, path.string()));
  return path;
}

// Frame N is gray of this level, before it is encoded.
inline std::string gray_source(int frames, const std::string& size, int rate) {
  return fmt::format(
      "-f lavfi -i \"color=black:s={}:r={},geq=lum='16+N*8':cb=128:cr=128\" -frames:v {}", size,
      rate, frames);
}
inline double gray_level(std::int64_t frame) {
  return static_cast<double>(frame * 8) * 255 / 219;
}

// What ffmpeg itself decodes: uint8 [frames, height, width, 3].
inline Tensor ffmpeg_frames(const std::filesystem::path& path, std::int64_t height,
                            std::int64_t width) {
  const std::string raw =
      output_of(fmt::format("ffmpeg -nostdin -v error -i '{}' -fps_mode passthrough -f rawvideo "
                            "-pix_fmt rgb24 -",
                            path.string()));
  const auto bytes = static_cast<std::int64_t>(raw.size());
  REQUIRE(bytes % (height * width * 3) == 0);
  const Tensor all = at::empty({bytes / (height * width * 3), height, width, 3}, at::kByte);
  std::copy(raw.begin(), raw.end(), reinterpret_cast<char*>(all.data_ptr<std::uint8_t>()));
  return all;
}

// What ffprobe says of the video stream, and of the container under "format".
inline nlohmann::json ffprobe(const std::filesystem::path& path) {
  const auto all = nlohmann::json::parse(output_of(fmt::format(
      "ffprobe -v error -count_frames -show_streams -show_format -of json '{}'", path.string())));
  nlohmann::json stream = all["streams"].at(0);
  stream["format"] = all["format"];
  return stream;
}

inline std::filesystem::path write_clip(const Folder& folder, const std::string& name,
                                        const Tensor& frames, ClipEncoding encoding = {},
                                        const PictureTexts& texts = {}) {
  const auto path = folder.path() / name;
  encoding.format = clip_format_of_name(path).value_or(ClipFormat::png);
  ClipWriter writer(path, encoding, {frames.size(1), frames.size(2)});
  writer.add(frames);
  writer.finish(texts);
  return path;
}

inline double mean_gap(const Tensor& a, const Tensor& b) {
  return (a.to(at::kFloat) - b.to(at::kFloat)).abs().mean().item<double>();
}

inline bool have_libav() {
  return facts_of(ClipFormat::mp4).built_in;
}
inline bool have_webp() {
  return facts_of(ClipFormat::webp).built_in;
}
inline constexpr const char *kNoLibav = "this build has no libav",
                            *kNoWebp = "this build has no libwebp",
                            *kNoFfmpeg = "there is no ffmpeg program";

}  // namespace diptych::test
