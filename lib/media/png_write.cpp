#include <csetjmp>

#include <png.h>

#include "lib/base/atomic_file.h"
#include "lib/base/error.h"
#include "lib/base/utf8.h"
#include "lib/media/png.h"
#include "lib/media/png_deflate.h"

namespace diptych {
namespace {

constexpr std::size_t kChunk = std::size_t{1} << 20;  // of compressed data

// As in png_read.cpp: what owns memory lives here, because libpng leaves errors by longjmp.
struct Writer {
  std::vector<std::uint8_t> bytes;
  std::string reason;
  png_structp png = nullptr;
  png_infop info = nullptr;
  std::uint32_t width = 0, height = 0;
  std::vector<std::pair<std::string, std::string>> owned_text;  // as stored in the file
  std::vector<png_text> text;
  std::vector<std::uint8_t> data;  // of the IDAT chunks

  ~Writer() { png_destroy_write_struct(&png, &info); }
};

[[noreturn]] void on_error(png_structp png, png_const_charp message) {
  auto* writer = static_cast<Writer*>(png_get_error_ptr(png));
  writer->reason = message;
  png_longjmp(png, 1);
}

void on_warning(png_structp, png_const_charp) {}  // keywords and texts are checked before

void on_write(png_structp png, png_bytep data, std::size_t count) {
  auto* writer = static_cast<Writer*>(png_get_io_ptr(png));
  bool stored = true;
  try {
    writer->bytes.insert(writer->bytes.end(), data, data + count);
  } catch (const std::exception&) {
    stored = false;  // no exception may cross libpng's C frames
  }
  if (!stored) png_error(png, "out of memory");
}

void on_flush(png_structp) {}

bool write_all(Writer& w) {
  if (setjmp(png_jmpbuf(w.png))) return false;
  png_set_write_fn(w.png, &w, on_write, on_flush);
  png_set_user_limits(w.png, kMaxImageSide, kMaxImageSide);
  png_set_IHDR(w.png, w.info, w.width, w.height, 8, PNG_COLOR_TYPE_RGB, PNG_INTERLACE_NONE,
               PNG_COMPRESSION_TYPE_DEFAULT, PNG_FILTER_TYPE_DEFAULT);
  if (!w.text.empty()) {
    png_set_text(w.png, w.info, w.text.data(), static_cast<int>(w.text.size()));
  }
  png_write_info(w.png, w.info);
  constexpr png_byte kData[] = {'I', 'D', 'A', 'T'}, kEnd[] = {'I', 'E', 'N', 'D'};
  for (std::size_t at = 0; at < w.data.size(); at += kChunk)
    png_write_chunk(w.png, kData, w.data.data() + at, std::min(kChunk, w.data.size() - at));
  png_write_chunk(w.png, kEnd, nullptr, 0);
  return true;
}

// The text in Latin-1, or nullopt where it holds other characters. Throws InputError for bytes that
// are not UTF-8 and for NUL, which ends a chunk's text.
std::optional<std::string> to_latin1(std::string_view text, std::string_view what) {
  std::string out;
  bool fits = true;
  for (std::size_t i = 0; i < text.size();) {
    const Utf8Character character = utf8_at(text, i);
    if (!character.valid) throw InputError("{}: byte {} is not valid UTF-8", what, i);
    if (character.code_point == 0)
      throw InputError("{}: byte {} is NUL, which PNG text cannot hold", what, i);
    fits = fits && character.code_point < 0x100;
    if (fits) out += static_cast<char>(character.code_point);
    i += character.length;
  }
  return fits ? std::optional(out) : std::nullopt;
}

std::string keyword_to_latin1(const std::string& keyword) {
  const auto latin1 = to_latin1(keyword, "PNG keyword");
  bool valid = latin1 && !latin1->empty() && latin1->size() <= 79 && latin1->front() != ' ' &&
               latin1->back() != ' ' && latin1->find("  ") == std::string::npos;
  for (const char c : latin1.value_or("")) {
    const auto byte = static_cast<unsigned char>(c);
    valid = valid && ((byte >= 32 && byte <= 126) || byte >= 161);
  }
  if (!valid) {
    throw InputError("PNG keyword '{}': expected 1 to 79 printable Latin-1 characters", keyword);
  }
  return *latin1;
}

void set_text(Writer& w, std::span<const std::pair<std::string, std::string>> text) {
  std::vector<bool> international;
  for (const auto& [keyword, value] : text) {
    const auto latin1 = to_latin1(value, fmt::format("PNG text '{}'", keyword));
    w.owned_text.emplace_back(keyword_to_latin1(keyword), latin1.value_or(value));
    international.push_back(!latin1);
  }
  for (std::size_t i = 0; i < w.owned_text.size(); ++i) {
    auto& [keyword, value] = w.owned_text[i];
    png_text chunk{};
    chunk.key = keyword.data();
    chunk.text = value.data();
    chunk.compression = international[i] ? PNG_ITXT_COMPRESSION_NONE : PNG_TEXT_COMPRESSION_NONE;
    (international[i] ? chunk.itxt_length : chunk.text_length) = value.size();
    w.text.push_back(chunk);
  }
}

}  // namespace

std::vector<std::uint8_t> encode_png(const Tensor& rgb,
                                     std::span<const std::pair<std::string, std::string>> text) {
  TORCH_CHECK(rgb.dim() == 3 && rgb.size(2) == 3 && rgb.scalar_type() == at::kByte,
              "[png] expected uint8 [height, width, 3], got ", rgb.scalar_type(), " ", rgb.sizes());
  TORCH_CHECK(rgb.size(0) > 0 && rgb.size(1) > 0 && rgb.size(0) <= kMaxImageSide &&
                  rgb.size(1) <= kMaxImageSide,
              "[png] sides must be 1 to ", kMaxImageSide, ", got ", rgb.sizes());
  const Tensor pixels = rgb.to(at::kCPU).contiguous();  // [height, width, 3]
  Writer w;
  set_text(w, text);
  w.height = static_cast<std::uint32_t>(pixels.size(0));
  w.width = static_cast<std::uint32_t>(pixels.size(1));
  w.data = deflate_pixels(pixels.const_data_ptr<std::uint8_t>(), w.width, w.height);
  w.bytes.reserve(w.data.size() + kChunk / 16);  // texts besides
  w.png = png_create_write_struct(PNG_LIBPNG_VER_STRING, &w, on_error, on_warning);
  if (w.png != nullptr) w.info = png_create_info_struct(w.png);
  if (w.info == nullptr || !write_all(w)) throw RunError("PNG encoder: {}", w.reason);
  return std::move(w.bytes);
}

void write_png(const std::filesystem::path& path, const Tensor& rgb,
               std::span<const std::pair<std::string, std::string>> text) {
  const auto bytes = encode_png(rgb, text);
  AtomicFile file(path);
  file.write(bytes.data(), bytes.size());
  file.commit();
}

}  // namespace diptych
