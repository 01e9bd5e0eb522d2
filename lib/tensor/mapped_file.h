// A whole file as read-only bytes, mapped and never copied; or read piece by piece.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>

#include "lib/base/descriptor.h"
#include "lib/base/map_guard.h"

namespace diptych {

class MappedFile {
 public:
  // Throws InputError naming the file where it is missing, unreadable or not a regular file. The
  // size is taken at opening: a read of what another process cuts off later ends as map_guard.h
  // says.
  explicit MappedFile(const std::filesystem::path& path);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;
  std::span<const std::byte> bytes() const { return bytes_; }
  // Copies the bytes from `offset` on. Several threads may read at once: faster than the map, whose
  // pages are made present one by one. Throws RunError where the file has become shorter or cannot
  // be read.
  void read(std::uint64_t offset, std::span<std::byte> into) const;
  int descriptor() const { return file_.number; }
  // Which part of it the system holds in memory, 0 to 1, by a sample of its pages.
  double cached_share(std::size_t begin, std::size_t end) const;
  // Read far ahead and let go of what was read (true), or as the system does by itself (false).
  void expect_sequential_reads(bool sequential) const;

 private:
  std::filesystem::path path_;
  Descriptor file_;
  std::span<const std::byte> bytes_;
  std::optional<MapGuard> guard_;
};

}  // namespace diptych
