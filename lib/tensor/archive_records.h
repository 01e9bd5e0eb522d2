// Where the records of an archive of torch.save lie in the file. libtorch's own archive reader
// finds them (caffe2/serialize/inline_container.h). It takes memory of the size that a directory
// states, and goes wherever one points: zip_records() checks the bytes first, which nobody has
// before.
#pragma once

#include <cstddef>
#include <filesystem>
#include <map>
#include <span>
#include <string>

#include "lib/tensor/zip_records.h"

namespace diptych {

// The records of `file` by name, without the folder that all of them are in. Throws InputError
// naming `path` as zip_records(), for what libtorch does not take, such as a file without a version
// or with records in several folders, and for names that differ in their case alone.
std::map<std::string, ZipRecord, std::less<>> archive_records(const std::filesystem::path& path,
                                                              std::span<const std::byte> file);

}  // namespace diptych
