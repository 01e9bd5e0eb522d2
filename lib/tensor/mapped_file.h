// A whole file as read-only bytes, mapped and never copied.
#pragma once

#include <cstddef>
#include <filesystem>
#include <span>

namespace diptych {

class MappedFile {
 public:
  // Throws InputError naming the file where it is missing, unreadable or not a regular file. The
  // size is taken at opening: a file cut short by another process later ends this one with SIGBUS.
  explicit MappedFile(const std::filesystem::path& path);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;
  std::span<const std::byte> bytes() const { return bytes_; }
  // Read far ahead and let go of what was read (true), or as the system does by itself (false).
  void expect_sequential_reads(bool sequential) const;

 private:
  std::span<const std::byte> bytes_;
};

}  // namespace diptych
