#include "lib/base/atomic_file.h"

#include <cerrno>
#include <charconv>
#include <climits>
#include <csignal>
#include <cstring>
#include <utility>
#include <vector>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "lib/base/error.h"
#include "lib/base/file_kind.h"
#include "lib/base/sha256.h"

namespace diptych {
namespace {

namespace fs = std::filesystem;

constexpr unsigned kPermissionBits = 0777;

// What a chain of symbolic links ends in; that need not be there.
fs::path follow_links(const fs::path& path) {
  constexpr int kMostLinks = 40;  // as Linux itself follows
  fs::path end = path;
  for (int links = 0; links < kMostLinks; ++links) {
    std::error_code none;
    const fs::path next = fs::read_symlink(end, none);
    if (none) return end;  // no link
    end = end.parent_path() / next;
  }
  throw InputError("{}: too many symbolic links, one to the next", path.string());
}

// A file that its owner protected. root could write to any: of those without a single w it is
// asked, too.
bool is_protected(const fs::path& path, const struct stat& found) {
  if (found.st_uid == geteuid()) return false;
  constexpr unsigned kWriteBits = 0222;
  return (found.st_mode & kWriteBits) == 0 ||
         faccessat(AT_FDCWD, path.c_str(), W_OK, AT_EACCESS) != 0;
}

// The permission bits of the file that stands there, if one does. stat() also knows what is behind
// /dev/stdout, whose link ends in no path.
std::optional<unsigned> permissions_at(const fs::path& path) {
  struct stat found {};
  if (stat(path.c_str(), &found) != 0) return std::nullopt;
  if (!S_ISREG(found.st_mode)) {
    throw InputError("{}: is a {}, expected a file name", path.string(), file_kind(found.st_mode));
  }
  if (is_protected(path, found)) {
    throw InputError("{}: is another user's file and may not be written; expected another name",
                     path.string());
  }
  return found.st_mode & kPermissionBits;
}

// Behind a stem: the infix and the number of the process.
std::string partial_end(std::string_view process) {
  return fmt::format("{}{}", kPartialInfix, process);
}

// Another user's process is one that cannot be signalled.
bool is_ended_process(std::string_view number) {
  pid_t process = 0;
  const char* const end = number.data() + number.size();
  const auto parsed = std::from_chars(number.data(), end, process);
  if (parsed.ec != std::errc{} || parsed.ptr != end || process <= 0) return false;
  return kill(process, 0) != 0 && errno == ESRCH;
}

}  // namespace

std::string partial_stem(const std::string& name) {
  static constexpr std::string_view kLongestProcess = "4194304";  // as Linux numbers them
  constexpr std::size_t kDigits = 16;
  const std::size_t room = NAME_MAX - partial_end(kLongestProcess).size();
  if (name.size() <= room) return name;
  Sha256 hash;
  hash.update(name);
  std::size_t kept = room - kDigits - 1;
  const auto continues = [](char c) { return (static_cast<unsigned char>(c) & 0xC0U) == 0x80; };
  while (kept > 0 && continues(name[kept])) --kept;  // no half character of UTF-8
  return fmt::format("{}~{}", name.substr(0, kept), hash.finish_hex().substr(0, kDigits));
}

fs::path partial_path(const fs::path& path) {
  return path.parent_path() /
         (partial_stem(path.filename().string()) + partial_end(std::to_string(getpid())));
}

void remove_abandoned_partials(const fs::path& path) {
  const std::string begin = partial_stem(path.filename().string()) + partial_end("");
  const fs::path folder = path.has_parent_path() ? path.parent_path() : ".";
  std::vector<fs::path> abandoned;
  std::error_code error;
  for (fs::directory_iterator item(folder, error), last; !error && item != last;
       item.increment(error)) {
    const std::string name = item->path().filename().string();
    if (name.starts_with(begin) && is_ended_process(std::string_view(name).substr(begin.size())))
      abandoned.push_back(item->path());
  }
  for (const fs::path& partial : abandoned) fs::remove_all(partial, error);
}

AtomicFile::AtomicFile(std::filesystem::path path)
    : path_(std::move(path)), permissions_(permissions_at(path_)), target_(follow_links(path_)) {
  temporary_ = partial_path(target_);
  // Never open to more readers than the file it replaces.
  const int descriptor = open(temporary_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC,
                              permissions_.value_or(0666));
  if (descriptor >= 0) file_ = fdopen(descriptor, "wb");
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
  // The umask may have taken bits from open()'s.
  const bool kept = !permissions_ || fchmod(fileno(file_), *permissions_) == 0;
  const bool flushed = kept && std::fflush(file_) == 0 && fsync(fileno(file_)) == 0;
  const int error = errno;
  const bool closed = std::fclose(std::exchange(file_, nullptr)) == 0;
  std::error_code failure;
  if (flushed && closed) {
    std::filesystem::rename(temporary_, target_, failure);
    if (!failure) return;
  }
  std::error_code ignored;
  std::filesystem::remove(temporary_, ignored);
  throw WriteError("{}: write failed: {}", path_.string(),
                   failure ? failure.message() : std::strerror(error));
}

}  // namespace diptych
