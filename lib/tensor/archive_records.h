// Where the records of an archive of torch.save lie in the file. libtorch's own archive reader
// finds them (caffe2/serialize/inline_container.h). It takes memory of the size that a directory
// states, and goes wherever one points: zip_records() checks the bytes first, which nobody has
// before.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <string>

namespace diptych {

struct ArchiveRecord {
  std::uint64_t begin = 0, size = 0;  // bytes of the file
};

// The records of `file` by name, without the folder that all of them are in. Throws InputError
// naming `path` as zip_records(), for what libtorch does not take, such as a file without a version
// or with records in several folders, and for names that differ in their case alone.
std::map<std::string, ArchiveRecord, std::less<>> archive_records(const std::filesystem::path& path,
                                                                  std::span<const std::byte> file);

}  // namespace diptych
