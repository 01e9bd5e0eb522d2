#include "lib/base/text_file.h"

#include <algorithm>
#include <cerrno>
#include <cstring>

#include <poll.h>
#include <unistd.h>

#include "lib/base/descriptor.h"
#include "lib/base/error.h"
#include "lib/base/folder.h"
#include "lib/base/interrupt.h"

namespace diptych {
namespace {

bool has_news(int descriptor) {
  constexpr int kMilliseconds = 50;
  pollfd watched = {descriptor, POLLIN, 0};
  const int ready = ::poll(&watched, 1, kMilliseconds);
  check_interrupted();
  return ready > 0;
}

}  // namespace

std::optional<std::string> read_text_start(int descriptor, std::size_t bytes) {
  constexpr std::size_t kPart = std::size_t{1} << 16;
  std::string text;
  for (bool ended = false; !ended && text.size() < bytes;) {
    if (!has_news(descriptor)) continue;
    const std::size_t filled = text.size();
    text.resize(std::min(filled + kPart, bytes));
    const ssize_t more = ::read(descriptor, text.data() + filled, text.size() - filled);
    text.resize(filled + static_cast<std::size_t>(std::max<ssize_t>(more, 0)));
    if (more < 0 && errno != EINTR && errno != EAGAIN) return std::nullopt;
    ended = more == 0;
  }
  return text;
}

std::string read_text_start(const std::filesystem::path& path, std::size_t bytes) {
  std::error_code ignored;
  if (std::filesystem::is_directory(path, ignored))
    throw InputError("{}: is a folder, expected a file", path.string());
  const Descriptor file(path);
  if (file.number < 0 && (errno == ENOENT || errno == ENOTDIR))
    throw InputError("{}: {}", path.string(), why_missing(path, "is missing"));
  std::optional<std::string> text;
  if (file.number >= 0) text = read_text_start(file.number, bytes);
  if (!text) throw InputError("{}: cannot be read: {}", path.string(), std::strerror(errno));
  return *std::move(text);
}

std::string read_text_file(const std::filesystem::path& path) {
  constexpr std::size_t kMostBytes = std::size_t{1} << 30;
  std::error_code ignored;
  const bool may_never_end = std::filesystem::is_other(path, ignored);
  std::string text = read_text_start(path, may_never_end ? kMostBytes + 1 : std::string::npos);
  if (may_never_end && text.size() > kMostBytes)
    throw InputError("{}: is larger than 1 GiB", path.string());
  return text;
}

}  // namespace diptych
