#include <cctype>
#include <csetjmp>
#include <cstdio>
#include <cstdlib>

#include <jpeglib.h>

#include "lib/base/error.h"
#include "lib/base/sha256.h"
#include "lib/media/jpeg.h"
#include "lib/media/jpeg_segments.h"
#include "lib/media/metadata.h"

namespace diptych {
namespace {

constexpr int kMetadataMarker = JPEG_APP0 + 1;
constexpr int kFullColorsFrom = 90;  // quality

// As in jpeg_read.cpp: libjpeg is left by longjmp, so what owns memory lives here.
struct Writer {
  jpeg_compress_struct jpeg{};
  jpeg_error_mgr errors{};
  std::jmp_buf failed{};
  char reason[JMSG_LENGTH_MAX] = {};
  unsigned char* bytes = nullptr;  // of malloc, grown by libjpeg
  unsigned long size = 0;
  const std::uint8_t* pixels = nullptr;
  JDIMENSION width = 0, height = 0;
  int quality = 0;
  std::vector<std::vector<std::uint8_t>> segments;

  ~Writer() {
    jpeg_destroy_compress(&jpeg);
    std::free(bytes);
  }
};

[[noreturn]] void on_error(j_common_ptr jpeg) {
  Writer& w = *static_cast<Writer*>(jpeg->client_data);
  jpeg->err->format_message(jpeg, w.reason);
  std::longjmp(w.failed, 1);
}

void on_message(j_common_ptr, int) {}  // remarks

bool write_all(Writer& w) {
  if (setjmp(w.failed) != 0) return false;
  jpeg_create_compress(&w.jpeg);
  jpeg_mem_dest(&w.jpeg, &w.bytes, &w.size);
  w.jpeg.image_width = w.width;
  w.jpeg.image_height = w.height;
  w.jpeg.input_components = 3;
  w.jpeg.in_color_space = JCS_RGB;
  jpeg_set_defaults(&w.jpeg);
  jpeg_set_quality(&w.jpeg, w.quality, TRUE);
  w.jpeg.dct_method = JDCT_ISLOW;
  w.jpeg.optimize_coding = TRUE;
  const int chroma = w.quality >= kFullColorsFrom ? 1 : 2;
  w.jpeg.comp_info[0].h_samp_factor = chroma;
  w.jpeg.comp_info[0].v_samp_factor = chroma;
  jpeg_start_compress(&w.jpeg, TRUE);
  for (const auto& segment : w.segments) {
    jpeg_write_marker(&w.jpeg, kMetadataMarker, segment.data(),
                      static_cast<unsigned>(segment.size()));
  }
  while (w.jpeg.next_scanline < w.height) {
    const std::size_t row_bytes = std::size_t{3} * w.width;
    auto* row = const_cast<JSAMPROW>(w.pixels + w.jpeg.next_scanline * row_bytes);  // only read
    jpeg_write_scanlines(&w.jpeg, &row, 1);
  }
  jpeg_finish_compress(&w.jpeg);
  return true;
}

void append(std::vector<std::uint8_t>& out, std::string_view text) {
  out.insert(out.end(), text.begin(), text.end());
}

void append_number(std::vector<std::uint8_t>& out, std::size_t number) {
  for (int shift = 24; shift >= 0; shift -= 8)
    out.push_back(static_cast<std::uint8_t>(number >> shift));
}

// A packet that fits goes into one segment, else all of it into an extension.
void add_xmp(Writer& w, const PictureTexts& texts) {
  const std::string xmp = make_xmp(texts);
  std::vector<std::uint8_t>& first = w.segments.emplace_back();
  append(first, kXmpPrefix);
  if (kXmpPrefix.size() + xmp.size() <= kMaxSegmentBytes) return append(first, xmp);
  // Adobe's name is the MD5 of the extension; readers compare it and nothing else.
  std::string name = sha256_hex(std::as_bytes(std::span(xmp))).substr(0, kXmpNameBytes);
  for (char& c : name) c = static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  append(first, make_xmp_pointer(name));
  const std::size_t most =
      kMaxSegmentBytes - kXmpExtensionPrefix.size() - kXmpNameBytes - kXmpPlaceBytes;
  for (std::size_t at = 0; at < xmp.size(); at += most) {
    std::vector<std::uint8_t>& part = w.segments.emplace_back();
    append(part, kXmpExtensionPrefix);
    append(part, name);
    append_number(part, xmp.size());
    append_number(part, at);
    append(part, std::string_view(xmp).substr(at, most));
  }
}

void add_exif(Writer& w, const PictureTexts& texts) {
  const std::vector<std::uint8_t> exif = make_exif(texts);
  if (exif.empty() || kExifPrefix.size() + exif.size() > kMaxSegmentBytes) return;
  std::vector<std::uint8_t>& segment = w.segments.emplace_back();
  append(segment, kExifPrefix);
  segment.insert(segment.end(), exif.begin(), exif.end());
}

}  // namespace

std::vector<std::uint8_t> encode_jpeg(const Tensor& rgb, const PictureTexts& texts, int quality) {
  TORCH_CHECK(rgb.dim() == 3 && rgb.size(2) == 3 && rgb.scalar_type() == at::kByte,
              "[jpeg] expected uint8 [height, width, 3], got ", rgb.scalar_type(), " ",
              rgb.sizes());
  TORCH_CHECK(quality >= 1 && quality <= 100, "[jpeg] quality ", quality);
  const Tensor pixels = rgb.to(at::kCPU).contiguous();  // [height, width, 3]
  Writer w;
  w.pixels = pixels.const_data_ptr<std::uint8_t>();
  w.height = static_cast<JDIMENSION>(pixels.size(0));
  w.width = static_cast<JDIMENSION>(pixels.size(1));
  w.quality = quality;
  if (!texts.empty()) {
    add_exif(w, texts);
    add_xmp(w, texts);
  }
  w.jpeg.err = jpeg_std_error(&w.errors);
  w.jpeg.client_data = &w;
  w.errors.error_exit = on_error;
  w.errors.emit_message = on_message;
  if (!write_all(w)) throw RunError("JPEG encoder: {}", w.reason);
  return {w.bytes, w.bytes + w.size};
}

}  // namespace diptych
