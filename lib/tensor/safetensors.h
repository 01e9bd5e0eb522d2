// The safetensors file format, read from a read-only memory map and written atomically.
// Format: u64 little-endian header length, JSON header, tensor bytes
// (github.com/huggingface/safetensors, README.md "Format").
#pragma once

#include <cstddef>
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
  // over 100 MB, not JSON, duplicate names, unknown keys or dtypes, negative or overflowing shapes,
  // offsets that overlap, leave holes, run out of the file or disagree with shape and dtype.
  static SafetensorsFile open(const std::filesystem::path& path);

  const std::filesystem::path& path() const;
  const std::map<std::string, TensorEntry, std::less<>>& entries() const;
  const std::map<std::string, std::string>& metadata() const;  // the "__metadata__" block
  // A CPU tensor that views the map, which it keeps alive. The map is read-only: writing to the
  // tensor ends the process. A copy where the bytes are not aligned for the dtype. Throws
  // InputError for an unknown name, and for BOOL bytes other than 0 and 1.
  Tensor view(std::string_view name) const;
  std::span<const std::byte> bytes(std::string_view name) const;  // as stored; valid while open
  // Copies bytes of a tensor from `offset` within it on; from any thread. Throws RunError where the
  // file has become shorter or cannot be read.
  void read(const TensorEntry& entry, std::uint64_t offset, std::span<std::byte> into) const;
  double cached_share() const;  // which part of the file the system holds in memory, 0 to 1
  int descriptor() const;       // the open file's
  void expect_sequential_reads(bool sequential) const;  // advice to the system

 private:
  struct State;
  explicit SafetensorsFile(std::shared_ptr<const State> state) : state_(std::move(state)) {}
  const TensorEntry& entry(std::string_view name) const;
  std::shared_ptr<const State> state_;
};

// Writes the tensors (any device, any stride) in the order given, one at a time on the host. Names
// and metadata must be UTF-8. Atomic; throws as AtomicFile; a name given twice is a programmer's
// error.
void write_safetensors(const std::filesystem::path& path,
                       std::span<const std::pair<std::string, Tensor>> tensors,
                       const std::map<std::string, std::string>& metadata = {});

}  // namespace diptych
