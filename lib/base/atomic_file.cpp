#include "lib/base/atomic_file.h"

#include <cerrno>
#include <cstring>
#include <utility>

#include <unistd.h>

#include "lib/base/error.h"

namespace diptych {

AtomicFile::AtomicFile(std::filesystem::path path) : path_(std::move(path)) {
  if (std::error_code ignored; std::filesystem::is_directory(path_, ignored)) {
    throw InputError("{}: is a folder, expected a file name", path_.string());
  }
  temporary_ = path_;
  temporary_ += fmt::format(".partial-{}", getpid());
  file_ = std::fopen(temporary_.c_str(), "wb");
  if (file_ == nullptr) {
    const int error = errno;
    const auto text =
        fmt::format("{}: cannot be written: {}", path_.string(), std::strerror(error));
    if (error == ENOSPC || error == EDQUOT || error == EIO) throw WriteError(text);
    throw InputError(text);
  }
}

AtomicFile::~AtomicFile() {
  if (file_ == nullptr) return;
  std::fclose(file_);
  std::error_code ignored;
  std::filesystem::remove(temporary_, ignored);
}

void AtomicFile::write(const void* data, std::size_t bytes) {
  if (bytes > 0 && std::fwrite(data, 1, bytes, file_) != bytes) {
    throw WriteError("{}: write failed: {}", path_.string(), std::strerror(errno));
  }
}

void AtomicFile::commit() {
  const bool flushed = std::fflush(file_) == 0 && fsync(fileno(file_)) == 0;
  const int error = errno;
  const bool closed = std::fclose(std::exchange(file_, nullptr)) == 0;
  std::error_code failure;
  if (flushed && closed) {
    std::filesystem::rename(temporary_, path_, failure);
    if (!failure) return;
  }
  std::error_code ignored;
  std::filesystem::remove(temporary_, ignored);
  throw WriteError("{}: write failed: {}", path_.string(),
                 failure ? failure.message() : std::strerror(error));
}

}  // namespace diptych
