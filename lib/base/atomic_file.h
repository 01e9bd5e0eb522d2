// An output that is there whole or not at all: written beside its place, then renamed.
#pragma once

#include <cstdio>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace diptych {

// Between a file's name and the number of the process that writes it: "a.png.partial-123".
inline constexpr std::string_view kPartialInfix = ".partial-";

// What stands in front of the infix: the file's name, or its beginning and a hash where the whole
// name would be too long with what follows.
std::string partial_stem(const std::string& name);
// "<path>.partial-<pid>", of this process.
std::filesystem::path partial_path(const std::filesystem::path& path);
// Removes those of the same path whose processes have ended; what cannot be removed stays.
void remove_abandoned_partials(const std::filesystem::path& path);

// Opens "<path>.partial-<pid>" for writing. commit() flushes, syncs and renames it to `path`; a
// destructor without commit() removes it. A file that is replaced leaves its permission bits to the
// new one. Where `path` is a symbolic link, all this happens to what it points to, whether that is
// there or not, and the link stays. Throws InputError where the folder is missing or not writable,
// where `path` is no regular file, and where it is another user's that may not be written, although
// the folder would let it be replaced; WriteError where a write fails (disk full), naming `path`.
//
// Pipes, devices and sockets are refused, not written directly: nothing could be taken back that a
// failing run had written there, and finding out ahead of a run whether one can be opened
// would block, or show its reader an empty file.
class AtomicFile {
 public:
  explicit AtomicFile(std::filesystem::path path);
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;
  void write(const void* data, std::size_t bytes);
  void write(std::string_view text) { write(text.data(), text.size()); }
  void commit();

 private:
  std::filesystem::path path_;                // as it was given, for messages
  std::optional<unsigned> permissions_;       // of the file that is replaced
  std::filesystem::path target_, temporary_;  // links followed
  std::FILE* file_ = nullptr;
};

}  // namespace diptych
