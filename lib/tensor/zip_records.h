// Where the uncompressed records of a zip archive lie in the file, from bytes that nobody has
// checked before. Format: PKWARE APPNOTE.TXT 6.3.9, sections 4.3 and 4.5.3 (zip64).
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <string>

namespace diptych {

struct ZipRecord {
  std::uint64_t begin = 0, size = 0;  // bytes of the file
  bool operator==(const ZipRecord&) const = default;
};

// The records by name, from the directory at the end of `file`; reads none of them and no checksum.
// All lie within the file. Throws InputError naming `path` for: no archive, an archive that is cut
// short or in parts, a directory that disagrees with itself or with what stands before a record,
// names that appear twice, compressed or encrypted records.
std::map<std::string, ZipRecord, std::less<>> zip_records(const std::filesystem::path& path,
                                                          std::span<const std::byte> file);

}  // namespace diptych
