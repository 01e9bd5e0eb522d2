// The safetensors file format, read from a read-only memory map and written atomically.
// Format: u64 little-endian header length, JSON header, tensor bytes
// (github.com/huggingface/safetensors, README.md "Format").
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "lib/tensor/types.h"

namespace diptych {

struct TensorEntry {
  at::ScalarType dtype;
  std::vector<std::int64_t> shape;
  std::uint64_t begin = 0, end = 0;  // bytes into the data section
};

// A validated, mapped file. Opening reads the header only; tensors are views of the map.
class SafetensorsFile {
 public:
  // Throws InputError naming the file for: missing, too short, header length beyond the file or
  // over 100 MB, not JSON, duplicate names, unknown dtype, negative or overflowing shapes, offsets
  // that overlap, leave holes, run out of the file or disagree with shape and dtype.
  static SafetensorsFile open(const std::filesystem::path& path);

  const std::filesystem::path& path() const;
  const std::map<std::string, TensorEntry, std::less<>>& entries() const;
  const std::map<std::string, std::string>& metadata() const;  // the "__metadata__" block
  // A CPU tensor that views the map (read-only, kept alive by the tensor). Throws InputError for an
  // unknown name.
  Tensor view(std::string_view name) const;

 private:
  struct State;
  std::shared_ptr<const State> state_;
};

// Writes the tensors (any device, any stride) in the order given. Atomic; throws as AtomicFile.
void write_safetensors(const std::filesystem::path& path,
                       std::span<const std::pair<std::string, Tensor>> tensors,
                       const std::map<std::string, std::string>& metadata = {});

}  // namespace diptych
