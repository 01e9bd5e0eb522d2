#include <algorithm>
#include <csetjmp>
#include <cstdio>

#include <jerror.h>
#include <jpeglib.h>

#include "lib/base/error.h"
#include "lib/media/exif.h"
#include "lib/media/jpeg.h"
#include "lib/media/jpeg_segments.h"
#include "lib/media/metadata.h"

namespace diptych {
namespace {

constexpr int kMetadataMarker = JPEG_APP0 + 1;
constexpr unsigned kMaxMarkerBytes = 0xFFFF;
// Each scan of a progressive file may pass over all pixels for a few bytes. Encoders write about
// ten; cjpeg, which takes any list of them, at most 100.
constexpr int kMaxScans = 100;

// All that libjpeg's callbacks and the guarded functions below touch. libjpeg is left by longjmp,
// which skips destructors: so everything that owns memory lives here, outside the functions that
// call setjmp, and those hold plain locals only.
struct Reader {
  std::span<const std::uint8_t> bytes;
  jpeg_decompress_struct jpeg{};
  jpeg_error_mgr errors{};
  jpeg_progress_mgr progress{};
  std::jmp_buf failed{};
  char reason[JMSG_LENGTH_MAX] = {};  // libjpeg's text of the error
  bool out_of_memory = false;
  std::vector<std::uint8_t> row;  // samples as decoded

  ~Reader() { jpeg_destroy_decompress(&jpeg); }  // nothing where it was never created
};

Reader& reader_of(j_common_ptr jpeg) {
  return *static_cast<Reader*>(jpeg->client_data);
}

[[noreturn]] void fail(Reader& r) {
  std::longjmp(r.failed, 1);
}

[[noreturn]] void on_error(j_common_ptr jpeg) {
  Reader& r = reader_of(jpeg);
  jpeg->err->format_message(jpeg, r.reason);
  r.out_of_memory = jpeg->err->msg_code == JERR_OUT_OF_MEMORY;
  fail(r);
}

// Warnings that lose no pixel: an unknown version or Adobe mark (the colours are then guessed, as
// Pillow lets libjpeg guess them), and stray bytes in front of a segment, which some cameras write.
// Stray bytes in front of a restart marker mean that the data before it are damaged.
bool is_harmless(const jpeg_error_mgr& warning) {
  constexpr int kFirstRestart = 0xD0, kLastRestart = 0xD7;
  const int marker = warning.msg_parm.i[1];
  switch (warning.msg_code) {
    case JWRN_JFIF_MAJOR:
    case JWRN_ADOBE_XFORM:
      return true;
    case JWRN_EXTRANEOUS_DATA:
      return marker < kFirstRestart || marker > kLastRestart;
    default:
      return false;
  }
}

void on_message(j_common_ptr jpeg, int level) {
  const bool warning = level < 0;  // else a remark
  if (warning && !is_harmless(*jpeg->err)) on_error(jpeg);
}

void on_progress(j_common_ptr jpeg) {
  Reader& r = reader_of(jpeg);
  if (r.jpeg.input_scan_number <= kMaxScans) return;
  std::snprintf(r.reason, sizeof(r.reason), "more than %d scans", kMaxScans);
  fail(r);
}

// Everything up to the first scan.
bool read_header(Reader& r) {
  if (setjmp(r.failed) != 0) return false;
  jpeg_create_decompress(&r.jpeg);
  r.jpeg.progress = &r.progress;
  jpeg_mem_src(&r.jpeg, r.bytes.data(), r.bytes.size());
  jpeg_save_markers(&r.jpeg, kMetadataMarker, kMaxMarkerBytes);
  jpeg_read_header(&r.jpeg, TRUE);
  return true;
}

// Reads every scan of a progressive file.
bool start(Reader& r) {
  if (setjmp(r.failed) != 0) return false;
  jpeg_start_decompress(&r.jpeg);
  return true;
}

// a * b / 255, rounded as Pillow's MULDIV255.
std::uint32_t multiply(std::uint32_t a, std::uint32_t b) {
  const std::uint32_t t = a * b + 128;
  return (t + (t >> 8)) >> 8;
}

void convert_row(const std::uint8_t* in, std::size_t width, J_COLOR_SPACE space,
                 std::uint8_t* out) {
  switch (space) {
    case JCS_GRAYSCALE:
      for (std::size_t x = 0; x < width; ++x) std::fill_n(out + x * 3, 3, in[x]);
      break;
    case JCS_CMYK:  // inverted: 255 is no ink
      for (std::size_t x = 0; x < width; ++x) {
        const std::uint32_t light = in[x * 4 + 3];
        for (std::size_t c = 0; c < 3; ++c) {
          const std::uint32_t ink = 255u - in[x * 4 + c];
          out[x * 3 + c] = static_cast<std::uint8_t>(light - multiply(ink, light));
        }
      }
      break;
    default:
      std::copy_n(in, width * 3, out);
  }
}

// out: [height, width, 3]
bool read_pixels(Reader& r, std::uint8_t* out) {
  if (setjmp(r.failed) != 0) return false;
  while (r.jpeg.output_scanline < r.jpeg.output_height) {
    const std::size_t y = r.jpeg.output_scanline, width = r.jpeg.output_width;
    JSAMPROW row = r.row.data();
    jpeg_read_scanlines(&r.jpeg, &row, 1);
    convert_row(row, width, r.jpeg.out_color_space, out + y * width * 3);
  }
  jpeg_finish_decompress(&r.jpeg);
  return true;
}

// The data of the first segment that begins so; empty where there is none.
std::span<const std::uint8_t> segment(const Reader& r, std::string_view prefix) {
  for (auto marker = r.jpeg.marker_list; marker != nullptr; marker = marker->next) {
    const std::span<const std::uint8_t> data(marker->data, marker->data_length);
    if (marker->marker == kMetadataMarker && begins_with(data, prefix))
      return data.subspan(prefix.size());
  }
  return {};
}

std::string_view as_text(std::span<const std::uint8_t> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

// The parts of an XMP extension of this name, one behind the other; "" where one is missing. Each
// says how long all are, and where it begins.
std::string xmp_extension(const Reader& r, std::string_view extension_name) {
  std::string whole;
  if (extension_name.size() != kXmpNameBytes) return whole;
  const std::string prefix = std::string(kXmpExtensionPrefix) + std::string(extension_name);
  std::size_t total = 0;
  for (auto marker = r.jpeg.marker_list; marker != nullptr; marker = marker->next) {
    std::span<const std::uint8_t> data(marker->data, marker->data_length);
    if (marker->marker != kMetadataMarker || !begins_with(data, prefix)) continue;
    data = data.subspan(prefix.size());
    if (data.size() < kXmpPlaceBytes) return {};
    total = big_endian(data, 0);
    if (big_endian(data, 4) != whole.size()) return {};
    whole += as_text(data.subspan(kXmpPlaceBytes));
  }
  return whole.size() == total ? whole : "";
}

PictureTexts stored_texts(const Reader& r) {
  const std::string_view xmp = as_text(segment(r, kXmpPrefix));
  PictureTexts texts = xmp_texts(xmp);
  for (auto& text : xmp_texts(xmp_extension(r, xmp_extension_name(xmp))))
    texts.push_back(std::move(text));
  return merge_texts(std::move(texts), exif_texts(segment(r, kExifPrefix)));
}

int stored_orientation(const Reader& r) {
  return exif_orientation(segment(r, kExifPrefix));
}

J_COLOR_SPACE output_space(const Reader& r, std::string_view name) {
  switch (r.jpeg.num_components) {
    case 1:
      return JCS_GRAYSCALE;
    case 3:
      return JCS_RGB;
    case 4:
      return JCS_CMYK;
    default:
      throw InputError("{}: a JPEG file of {} components, expected 1, 3 or 4", name,
                       r.jpeg.num_components);
  }
}

void check_size(const Reader& r, std::string_view name) {
  check_image_size(r.jpeg.image_width, r.jpeg.image_height, name);
  // Before anything of that size is allocated: the Huffman code of a block of 8x8 samples takes at
  // least one bit, and the components have together at least half a sample for each pixel.
  // (Arithmetic codes may be shorter.)
  constexpr std::uint64_t kMaxPixelsPerByte = 2 * 8 * 64;
  const std::uint64_t pixels = std::uint64_t{r.jpeg.image_width} * r.jpeg.image_height;
  if (r.jpeg.arith_code == FALSE && pixels / kMaxPixelsPerByte > r.bytes.size()) {
    throw InputError("{}: broken JPEG: {} bytes cannot hold {}x{} pixels", name, r.bytes.size(),
                     r.jpeg.image_width, r.jpeg.image_height);
  }
}

void require(bool done, const Reader& r, std::string_view name) {
  if (done) return;
  if (r.out_of_memory) throw RunError("{}: out of memory while reading it", name);
  throw InputError("{}: JPEG cannot be read: {}", name, r.reason);
}

// Reads up to the first scan and checks what it found.
void open_jpeg(Reader& r, std::span<const std::uint8_t> bytes, std::string_view name) {
  r.bytes = bytes;
  r.jpeg.err = jpeg_std_error(&r.errors);
  r.jpeg.client_data = &r;
  r.errors.error_exit = on_error;
  r.errors.emit_message = on_message;
  r.progress.progress_monitor = on_progress;
  require(read_header(r), r, name);
  r.jpeg.out_color_space = output_space(r, name);
  check_size(r, name);
}

}  // namespace

ImageSize jpeg_size(std::span<const std::uint8_t> bytes, std::string_view name) {
  Reader r;
  open_jpeg(r, bytes, name);
  return upright_size(r.jpeg.image_height, r.jpeg.image_width, stored_orientation(r));
}

Image decode_jpeg(std::span<const std::uint8_t> bytes, std::string_view name) {
  Reader r;
  open_jpeg(r, bytes, name);
  require(start(r), r, name);
  const std::int64_t width = r.jpeg.output_width, height = r.jpeg.output_height;
  r.row.resize(static_cast<std::size_t>(width * r.jpeg.output_components));
  Image image{at::empty({height, width, 3}, at::kByte), stored_texts(r), stored_orientation(r)};
  require(read_pixels(r, image.rgb.data_ptr<std::uint8_t>()), r, name);
  return image;
}

}  // namespace diptych
