// An output that is there whole or not at all: written beside its place, then renamed.
#pragma once

#include <cstdio>
#include <filesystem>
#include <span>
#include <string_view>

namespace diptych {

// Opens "<path>.partial-<pid>" for writing. commit() flushes, syncs and renames it to `path`; a
// destructor without commit() removes it. Throws InputError where the folder is missing or not
// writable, WriteError where a write fails (disk full), both naming `path`.
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
  std::filesystem::path path_, temporary_;
  std::FILE* file_ = nullptr;
};

}  // namespace diptych
