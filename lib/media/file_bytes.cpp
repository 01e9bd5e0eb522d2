#include "lib/media/file_bytes.h"

#include <cerrno>
#include <cstdio>
#include <cstring>

#include "lib/base/error.h"
#include "lib/base/file_kind.h"

namespace diptych {
namespace {

constexpr std::uint64_t kMaxFileBytes = std::uint64_t{1} << 30;

}  // namespace

std::vector<std::uint8_t> read_file_bytes(const std::filesystem::path& path) {
  std::error_code failure;
  if (struct stat found{}; stat(path.c_str(), &found) == 0 && !S_ISREG(found.st_mode))
    throw InputError("{}: is a {}, expected a file", path.string(), file_kind(found.st_mode));
  const auto size = std::filesystem::file_size(path, failure);
  if (failure) throw InputError("{}: cannot be read: {}", path.string(), failure.message());
  if (size > kMaxFileBytes) {
    throw InputError("{}: {} bytes, at most {} are read", path.string(), size, kMaxFileBytes);
  }
  std::vector<std::uint8_t> bytes(size);
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen(path.c_str(), "rb"),
                                                             std::fclose);
  if (file == nullptr) {
    throw InputError("{}: cannot be read: {}", path.string(), std::strerror(errno));
  }
  if (std::fread(bytes.data(), 1, bytes.size(), file.get()) != bytes.size()) {
    throw InputError("{}: cannot be read to its end", path.string());
  }
  return bytes;
}

}  // namespace diptych
