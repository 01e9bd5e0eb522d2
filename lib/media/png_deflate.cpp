#include "lib/media/png_deflate.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdlib>
#include <exception>
#include <functional>
#include <limits>
#include <mutex>
#include <thread>

#include <ATen/Parallel.h>
#include <zlib.h>

#include "lib/base/error.h"

namespace diptych {
namespace {

constexpr std::size_t kPixelBytes = 3;
constexpr std::size_t kOutputStep = std::size_t{128} << 10;
// Of pixels in a part. The parts are the same whatever the number of threads, and so are the bytes.
constexpr std::size_t kPartBytes = std::size_t{256} << 10;

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

// A part of the data: what it compresses to, up to the end of a byte, and what it was.
struct Part {
  std::vector<std::uint8_t> bytes;
  uLong checksum = 0;  // Adler-32 of the filtered rows
  std::size_t length = 0;
};

// Raw deflate: the zlib header and checksum stand around all parts.
class Deflater {
 public:
  Deflater() {
    constexpr int kMemory = 9;  // the most: longer blocks, with fewer tables of codes
    check(deflateInit2(&stream_, Z_DEFAULT_COMPRESSION, Z_DEFLATED, -MAX_WBITS, kMemory, Z_RLE));
    part_.checksum = adler32(0, nullptr, 0);
  }
  Deflater(const Deflater&) = delete;
  Deflater& operator=(const Deflater&) = delete;
  ~Deflater() { deflateEnd(&stream_); }

  void add(const std::vector<std::uint8_t>& bytes) {
    const auto count = static_cast<uInt>(bytes.size());
    part_.checksum = adler32(part_.checksum, bytes.data(), count);
    part_.length += count;
    stream_.next_in = const_cast<std::uint8_t*>(bytes.data());  // zlib 1.2 takes it so
    stream_.avail_in = count;
    while (stream_.avail_in > 0) step(Z_NO_FLUSH);
  }
  Part finish(bool last) {
    if (last) {
      while (step(Z_FINISH) != Z_STREAM_END) {
      }
    } else {
      do step(Z_FULL_FLUSH);
      while (stream_.avail_out == 0);
    }
    part_.bytes.resize(size_);
    return std::move(part_);
  }

 private:
  static void check(int status) {
    if (status != Z_OK && status != Z_STREAM_END)
      throw RunError("PNG encoder: zlib fails with {}", status);
  }
  int step(int flush) {
    constexpr std::size_t kLeastRoom = 64;  // with 6 bytes or less a flush would be marked twice
    std::vector<std::uint8_t>& out = part_.bytes;
    if (out.size() < size_ + kLeastRoom) out.resize(size_ + kOutputStep);
    stream_.next_out = out.data() + size_;
    stream_.avail_out = static_cast<uInt>(out.size() - size_);
    const int status = deflate(&stream_, flush);
    size_ = out.size() - stream_.avail_out;
    check(status);
    return status;
  }

  z_stream stream_{};
  Part part_;
  std::size_t size_ = 0;  // of its bytes in use
};

// Header, parts and checksum of a zlib stream.
std::vector<std::uint8_t> joined(const std::vector<Part>& parts) {
  std::vector<std::uint8_t> stream = {0x78, 0x9c};  // deflate with a window of 32 KiB
  std::size_t size = stream.size() + 4;
  for (const Part& part : parts) size += part.bytes.size();
  stream.reserve(size);
  uLong checksum = adler32(0, nullptr, 0);
  for (const Part& part : parts) {
    stream.insert(stream.end(), part.bytes.begin(), part.bytes.end());
    checksum = adler32_combine(checksum, part.checksum, static_cast<z_off_t>(part.length));
  }
  for (const int shift : {24, 16, 8, 0})
    stream.push_back(static_cast<std::uint8_t>(checksum >> shift & 0xff));
  return stream;
}

// Calls work(0) to work(count - 1), on as many threads as libtorch may use, up to eight.
void for_each_part(std::size_t count, const std::function<void(std::size_t)>& work) {
  constexpr std::size_t kMostThreads = 8;
  const auto allowed = static_cast<std::size_t>(at::get_num_threads());
  std::atomic<std::size_t> next = 0;
  std::mutex mutex;
  std::exception_ptr failure;
  const auto run = [&] {
    try {
      for (std::size_t at = next++; at < count; at = next++) work(at);
    } catch (...) {
      const std::scoped_lock lock(mutex);
      failure = std::current_exception();
    }
  };
  {
    std::vector<std::jthread> others;
    for (std::size_t i = 1; i < std::min({count, allowed, kMostThreads}); ++i)
      others.emplace_back(run);
    run();
  }
  if (failure) std::rethrow_exception(failure);
}

}  // namespace

std::vector<std::uint8_t> deflate_pixels(const std::uint8_t* pixels, std::size_t width,
                                         std::size_t height) {
  const std::size_t row_bytes = width * kPixelBytes;
  const std::size_t part_rows = std::max<std::size_t>(kPartBytes / row_bytes, 1);
  const std::vector<std::uint8_t> nothing(row_bytes);  // above the first row
  std::vector<Part> parts((height + part_rows - 1) / part_rows);
  for_each_part(parts.size(), [&](std::size_t at) {
    Filter filter(row_bytes);
    Deflater deflater;
    const std::size_t stop = std::min((at + 1) * part_rows, height);
    for (std::size_t y = at * part_rows; y < stop; ++y) {
      const std::uint8_t* row = pixels + y * row_bytes;
      deflater.add(filter.apply(row, y == 0 ? nothing.data() : row - row_bytes));
    }
    parts[at] = deflater.finish(stop == height);
  });
  return joined(parts);
}

}  // namespace diptych
