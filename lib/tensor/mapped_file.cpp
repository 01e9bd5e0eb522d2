#include "lib/tensor/mapped_file.h"

#include <algorithm>
#include <cerrno>
#include <cstring>

#include <sys/mman.h>
#include <sys/stat.h>

#include "lib/base/error.h"

namespace diptych {

MappedFile::MappedFile(const std::filesystem::path& path) : path_(path), file_(path) {
  struct stat status {};
  if (file_.number < 0 || fstat(file_.number, &status) != 0) {
    throw InputError("{}: cannot be read: {}", path.string(), std::strerror(errno));
  }
  if (!S_ISREG(status.st_mode)) {
    throw InputError("{}: is {}, expected a file", path.string(),
                     S_ISDIR(status.st_mode) ? "a folder" : "not a regular file");
  }
  const auto size = static_cast<std::size_t>(status.st_size);
  if (size == 0) return;  // mmap refuses an empty range
  void* const map = mmap(nullptr, size, PROT_READ, MAP_PRIVATE, file_.number, 0);
  if (map == MAP_FAILED) {
    if (errno == ENOMEM) throw RunError("{}: cannot be mapped: out of memory", path.string());
    throw InputError("{}: cannot be mapped: {}", path.string(), std::strerror(errno));
  }
  bytes_ = {static_cast<const std::byte*>(map), size};
  guard_.emplace(path, bytes_);
}

MappedFile::~MappedFile() {
  guard_.reset();
  if (!bytes_.empty()) munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size());
}

void MappedFile::read(std::uint64_t offset, std::span<std::byte> into) const {
  while (!into.empty()) {
    const ssize_t done = pread(file_.number, into.data(), into.size(), static_cast<off_t>(offset));
    if (done < 0 && errno == EINTR) continue;
    if (done < 0) throw RunError("{}: cannot be read: {}", path_.string(), std::strerror(errno));
    if (done == 0) {
      struct stat status {};
      fstat(file_.number, &status);
      throw RunError("{}: has become shorter while it was read: {} bytes now, {} before",
                     path_.string(), status.st_size, bytes_.size());
    }
    offset += static_cast<std::uint64_t>(done);
    into = into.subspan(static_cast<std::size_t>(done));
  }
}

double MappedFile::cached_share(std::size_t begin, std::size_t end) const {
  constexpr std::size_t kSamples = 64;
  const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  const std::size_t first = begin / page, pages = (end + page - 1) / page - first;
  const std::size_t samples = begin < end ? std::min(pages, kSamples) : 0;
  std::size_t cached = 0;
  for (std::size_t i = 0; i < samples; ++i) {
    const std::byte* const at = bytes_.data() + (first + i * pages / samples) * page;
    unsigned char state = 0;
    if (mincore(const_cast<std::byte*>(at), 1, &state) == 0) cached += state & 1U;
  }
  return samples == 0 ? 1 : static_cast<double>(cached) / static_cast<double>(samples);
}

void MappedFile::expect_sequential_reads(bool sequential) const {
  if (bytes_.empty()) return;
  // Advice only: a system that does not take it still reads correctly.
  madvise(const_cast<std::byte*>(bytes_.data()), bytes_.size(),
          sequential ? MADV_SEQUENTIAL : MADV_NORMAL);
}

}  // namespace diptych
