// Where the records of an archive of torch.save lie in the file. libtorch's own archive reader
// finds them (caffe2/serialize/inline_container.h).
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

// The records of `file` by name, without the folder that all of them are in. Reads none of them but
// the version. All lie within the file. Throws InputError naming `path` for what libtorch cannot
// read, encrypted records among it, for names that appear twice, compressed records, and records
// that reach beyond the file.
std::map<std::string, ArchiveRecord, std::less<>> archive_records(const std::filesystem::path& path,
                                                                  std::span<const std::byte> file);

}  // namespace diptych
