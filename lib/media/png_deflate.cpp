#include "lib/media/png_deflate.h"

#include <array>
#include <cstdlib>
#include <limits>

#include <zlib.h>

#include "lib/base/error.h"

namespace diptych {
namespace {

constexpr std::size_t kPixelBytes = 3;
constexpr std::size_t kOutputStep = std::size_t{256} << 10;

// What the filters 1 to 4 of the PNG specification (section 9) expect of a byte from the ones to
// its left, above it, and above that one. 16 bits, so that the compiler makes vectors of them.
using Short = std::int16_t;
constexpr auto kSub = [](Short left, Short, Short) { return left; };
constexpr auto kUp = [](Short, Short above, Short) { return above; };
constexpr auto kAverage = [](Short left, Short above, Short) {
  return static_cast<Short>((left + above) >> 1);
};
constexpr auto kPaeth = [](Short left, Short above, Short corner) {
  const auto to_left = static_cast<Short>(above - corner);
  const auto to_above = static_cast<Short>(left - corner);
  const auto to_corner = static_cast<Short>(std::abs(to_left + to_above));
  const auto a = static_cast<Short>(std::abs(to_left));
  const auto b = static_cast<Short>(std::abs(to_above));
  return a <= b && a <= to_corner ? left : b <= to_corner ? above : corner;
};

// The row less what is expected of it -> the sum of the differences' magnitudes, each taken as
// signed: the smaller, the better they are likely to compress.
template <typename Expect>
std::uint64_t filter_row(const std::uint8_t* row, const std::uint8_t* above, std::size_t count,
                         std::uint8_t* out, const Expect& expect) {
  for (std::size_t i = 0; i < kPixelBytes; ++i)
    out[i] = static_cast<std::uint8_t>(row[i] - expect(0, above[i], 0));
  for (std::size_t i = kPixelBytes; i < count; ++i) {
    const Short expected = expect(row[i - kPixelBytes], above[i], above[i - kPixelBytes]);
    out[i] = static_cast<std::uint8_t>(row[i] - expected);
  }
  std::uint32_t sum = 0;  // a row of 65536 pixels sums to 2^25 at most
  for (std::size_t i = 0; i < count; ++i)
    sum += static_cast<std::uint32_t>(std::abs(static_cast<std::int8_t>(out[i])));
  return sum;
}

class Filter {
 public:
  explicit Filter(std::size_t row_bytes) : row_bytes_(row_bytes) {
    for (std::size_t i = 0; i < rows_.size(); ++i) {
      rows_[i].resize(row_bytes + 1);
      rows_[i][0] = static_cast<std::uint8_t>(i + 1);  // the filter's number stands before the row
    }
  }
  // The filter's number and the filtered row; good until the next call.
  const std::vector<std::uint8_t>& apply(const std::uint8_t* row, const std::uint8_t* above) {
    std::size_t best = 0;
    std::uint64_t least = std::numeric_limits<std::uint64_t>::max();
    const auto attempt = [&](std::size_t at, const auto& expect) {
      const std::uint64_t sum = filter_row(row, above, row_bytes_, rows_[at].data() + 1, expect);
      if (sum >= least) return;
      least = sum;
      best = at;
    };
    attempt(0, kSub);
    attempt(1, kUp);
    attempt(2, kAverage);
    attempt(3, kPaeth);
    return rows_[best];
  }

 private:
  std::size_t row_bytes_;
  std::array<std::vector<std::uint8_t>, 4> rows_;
};

class Deflater {
 public:
  Deflater() {
    constexpr int kMemory = 9;  // the most: longer blocks, with fewer tables of codes
    check(deflateInit2(&stream_, Z_DEFAULT_COMPRESSION, Z_DEFLATED, MAX_WBITS, kMemory, Z_RLE));
  }
  Deflater(const Deflater&) = delete;
  Deflater& operator=(const Deflater&) = delete;
  ~Deflater() { deflateEnd(&stream_); }

  void add(const std::vector<std::uint8_t>& bytes) {
    stream_.next_in = const_cast<std::uint8_t*>(bytes.data());  // zlib 1.2 takes it so
    stream_.avail_in = static_cast<uInt>(bytes.size());
    while (stream_.avail_in > 0) step(Z_NO_FLUSH);
  }
  std::vector<std::uint8_t> finish() {
    while (step(Z_FINISH) != Z_STREAM_END) {
    }
    out_.resize(size_);
    return std::move(out_);
  }

 private:
  static void check(int status) {
    if (status != Z_OK && status != Z_STREAM_END)
      throw RunError("PNG encoder: zlib fails with {}", status);
  }
  int step(int flush) {
    if (size_ == out_.size()) out_.resize(size_ + kOutputStep);
    const std::size_t room = out_.size() - size_;
    stream_.next_out = out_.data() + size_;
    stream_.avail_out = static_cast<uInt>(std::min<std::size_t>(room, kOutputStep));
    const uInt before = stream_.avail_out;
    const int status = deflate(&stream_, flush);
    size_ += before - stream_.avail_out;
    check(status);
    return status;
  }

  z_stream stream_{};
  std::vector<std::uint8_t> out_;
  std::size_t size_ = 0;  // of out_ in use
};

}  // namespace

std::vector<std::uint8_t> deflate_pixels(const std::uint8_t* pixels, std::size_t width,
                                         std::size_t height) {
  const std::size_t row_bytes = width * kPixelBytes;
  const std::vector<std::uint8_t> nothing(row_bytes);  // above the first row
  Filter filter(row_bytes);
  Deflater deflater;
  const std::uint8_t* above = nothing.data();
  for (std::size_t y = 0; y < height; ++y) {
    const std::uint8_t* row = pixels + y * row_bytes;
    deflater.add(filter.apply(row, above));
    above = row;
  }
  return deflater.finish();
}

}  // namespace diptych
