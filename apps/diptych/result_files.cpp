#include "apps/diptych/result_files.h"

#include <algorithm>
#include <cerrno>
#include <cstdio>

#include <fmt/format.h>

#include "apps/diptych/record/recorded_text.h"
#include "lib/base/atomic_file.h"
#include "lib/base/error.h"
#include "lib/base/interrupt.h"
#include "lib/base/stdout.h"
#include "lib/media/png.h"
#include "lib/media/video/clip_write.h"
#include "lib/media/video/contact_sheet.h"
#include "lib/request/output_names.h"

namespace diptych {
namespace {

constexpr std::int64_t kSheetFrames = SheetLayout{}.cells;

void write_bytes(const std::filesystem::path& path, const std::vector<std::uint8_t>& bytes) {
  AtomicFile file(path);
  file.write(bytes.data(), bytes.size());
  file.commit();
}

// What is kept of the frames of a clip while they go by.
class FramesSeen {
 public:
  FramesSeen(std::int64_t frames, bool for_sheet)
      : wanted_(for_sheet ? evenly_spaced(frames, kSheetFrames) : std::vector<std::int64_t>{}) {}

  void add(const Tensor& frames) {
    hash_.add(frames);
    for (std::int64_t i = 0; i < frames.size(0); ++i, ++count_) {
      if (std::ranges::find(wanted_, count_) != wanted_.end())
        of_sheet_.push_back(frames[i].clone());
    }
  }
  std::int64_t count() const { return count_; }
  std::string pixels_hash() { return hash_.finish(); }
  std::vector<Tensor> of_sheet() { return std::move(of_sheet_); }

 private:
  std::vector<std::int64_t> wanted_;  // indices
  std::vector<Tensor> of_sheet_;
  PixelsHash hash_;
  std::int64_t count_ = 0;
};

struct DecodedClip {
  PictureTexts texts;  // its record
  std::string pixels_hash;
  std::vector<Tensor> of_sheet;
};

// Decodes a clip into a ClipEncoder or a ClipWriter.
template <typename Writer>
DecodedClip decode_clip(Writer& writer, const MadeResult& made, const ResultEncoding& encoding,
                        Progress& progress) {
  const Clip& clip = made.result().clip();
  FramesSeen seen(clip.shape.frames, !made.options().contact_sheet.empty());
  progress.begin("encode", clip.shape.frames);
  clip.decode([&](const Tensor& frames) {
    check_interrupted();
    writer.add(frames);
    seen.add(frames);
    progress.update(seen.count());
  });
  TORCH_CHECK(seen.count() == clip.shape.frames, "[clip] ", seen.count(), " frames came, not ",
              clip.shape.frames);
  const std::string hash = keeps_pixels(encoding) ? "" : seen.pixels_hash();
  return {record_texts(made, encoding, hash), hash, seen.of_sheet()};
}

void write_sheet(const Options& options, const DecodedClip& decoded) {
  if (options.contact_sheet.empty()) return;
  write_bytes(options.contact_sheet, encode_png(contact_sheet(decoded.of_sheet), {}));
}

}  // namespace

void write_text_file(const std::filesystem::path& path, std::string_view text) {
  AtomicFile file(path);
  file.write(text);
  file.write("\n");
  file.commit();
}

void require_encodable(const Options& options, const Job& job) {
  const std::optional<ClipShape> shape = job.clip_shape();
  if (!shape) return;
  require_writable_clip(clip_encoding(options, clip_format_of(options), shape->fps),
                        {shape->height, shape->width});
}

EncodedResult encode_result(const MadeResult& made, const ResultEncoding& encoding,
                            Progress& progress) {
  EncodedResult encoded;
  if (const auto* of_clip = std::get_if<ClipEncoding>(&encoding)) {
    ClipEncoder encoder(*of_clip, size_of(made.result().media));
    const DecodedClip decoded = decode_clip(encoder, made, encoding, progress);
    encoded.bytes = encoder.finish(decoded.texts);
    encoded.pixels_hash = decoded.pixels_hash;
    progress.end();
    write_sheet(made.options(), decoded);
    return encoded;
  }
  if (const auto* of_text = std::get_if<TextEncoding>(&encoding)) {
    const std::string text =
        of_text->with_record ? recorded_text_json(made) : made.result().text().text + "\n";
    encoded.bytes.assign(text.begin(), text.end());
    return encoded;
  }
  const Tensor& rgb = made.result().rgb();
  if (!keeps_pixels(encoding)) encoded.pixels_hash = pixels_hash(rgb);
  encoded.bytes = encode_picture(rgb, record_texts(made, encoding, encoded.pixels_hash),
                                 std::get<PictureEncoding>(encoding));
  return encoded;
}

std::string write_encoded(const std::filesystem::path& path, const MadeResult& made,
                          const ResultEncoding& encoding, Progress& progress) {
  if (!is_folder(encoding)) {
    EncodedResult encoded = encode_result(made, encoding, progress);
    write_bytes(path, encoded.bytes);
    return std::move(encoded.pixels_hash);
  }
  ClipWriter writer(path, std::get<ClipEncoding>(encoding), size_of(made.result().media));
  const DecodedClip decoded = decode_clip(writer, made, encoding, progress);
  writer.finish(decoded.texts);
  progress.end();
  write_sheet(made.options(), decoded);
  return decoded.pixels_hash;
}

void write_result(const std::filesystem::path& path, const MadeResult& made, Progress& progress) {
  write_encoded(path, made, encoding_of(made.options(), made.result().media, path), progress);
}

void print_result(const MadeResult& made, Progress& progress) {
  const ResultEncoding encoding = encoding_of(made.options(), made.result().media);
  const auto bytes = encode_result(made, encoding, progress).bytes;
  progress.clear();
  if (std::fwrite(bytes.data(), 1, bytes.size(), stdout) != bytes.size()) stdout_failed(errno);
  flush_stdout();
}

void PrintedPieces::print(std::string_view piece) {
  check_interrupted();
  progress_.clear();
  any_ = true;
  fmt::print("{}", piece);
  flush_stdout();
}

void PrintedPieces::end() {
  fmt::print("\n");
  flush_stdout();
}

void print_path(const std::filesystem::path& path) {
  fmt::print("{}\n", path.string());
  flush_stdout();
}

void show_plan(const Options& options, std::string_view plan, std::string_view label, Log& log) {
  log.info("{}plan: {}", label, plan);
  if (!options.think_output.empty()) write_text_file(options.think_output, plan);
}

}  // namespace diptych
