#include "lib/base/stdin.h"

#include <cerrno>
#include <cstring>
#include <optional>
#include <string>

#include <sys/mman.h>
#include <unistd.h>

#include "lib/base/descriptor.h"
#include "lib/base/error.h"
#include "lib/base/text_file.h"

namespace diptych {
namespace {

void write_all(int file, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t written = ::write(file, bytes.data(), bytes.size());
    if (written < 0 && errno != EINTR)
      throw RunError("stdin: cannot be kept in memory: {}", std::strerror(errno));
    bytes.remove_prefix(static_cast<std::size_t>(std::max<ssize_t>(written, 0)));
  }
}

}  // namespace

std::filesystem::path hold_stdin(std::size_t most_bytes) {
  if (::isatty(STDIN_FILENO) != 0) throw InputError("stdin is a terminal; expected a file or pipe");
  const std::optional<std::string> bytes = read_text_start(STDIN_FILENO, most_bytes + 1);
  if (!bytes) throw InputError("stdin cannot be read: {}", std::strerror(errno));
  if (bytes->size() > most_bytes) throw InputError("more than {} bytes on stdin", most_bytes);
  const int file = ::memfd_create("stdin", 0);
  if (file < 0) throw RunError("stdin: cannot be kept in memory: {}", std::strerror(errno));
  write_all(file, *bytes);
  const int placed = ::dup2(file, STDIN_FILENO);
  ::close(file);
  if (placed < 0) throw RunError("stdin: cannot be kept in memory: {}", std::strerror(errno));
  return "/dev/stdin";
}

std::filesystem::path file_or_stdin(const std::filesystem::path& file) {
  constexpr std::size_t kMostBytes = std::size_t{1} << 30;  // as of any picture
  return file == kStdin ? hold_stdin(kMostBytes) : file;
}

}  // namespace diptych
