// The safetensors file format, read from a read-only memory map and written atomically.
// Format: u64 little-endian header length, JSON header, tensor bytes
// (github.com/huggingface/safetensors, README.md "Format").
#pragma once

#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <utility>

#include "lib/tensor/tensor_file.h"
#include "lib/tensor/types.h"

namespace diptych {

class SafetensorsFile : public TensorFile {
 public:
  // Reads the header only. Throws InputError naming the file for: missing, too short, header length
  // beyond the file or over 100 MB, not JSON, duplicate names, unknown keys or dtypes, negative or
  // overflowing shapes, offsets that overlap, leave holes, run out of the file or disagree with
  // shape and dtype.
  static SafetensorsFile open(const std::filesystem::path& path);

 private:
  using TensorFile::TensorFile;
};

// Writes the tensors (any device, any stride) in the order given, one at a time on the host. Names
// and metadata must be UTF-8. Atomic; throws as AtomicFile; a name given twice is a programmer's
// error.
void write_safetensors(const std::filesystem::path& path,
                       std::span<const std::pair<std::string, Tensor>> tensors,
                       const std::map<std::string, std::string>& metadata = {});

}  // namespace diptych
