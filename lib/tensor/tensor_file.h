// A mapped file of named tensors, whatever its format. Its opener has checked every entry; tensors
// are views of the map.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lib/tensor/mapped_file.h"
#include "lib/tensor/types.h"

namespace diptych {

struct TensorEntry {
  at::ScalarType dtype;
  std::vector<std::int64_t> shape;   // of a contiguous tensor
  std::uint64_t begin = 0, end = 0;  // bytes into the data section
};

inline constexpr std::size_t kMaxRank = 64;  // what torch's element-wise kernels take

// Of a contiguous tensor. Nothing where they overflow 63 bits. The strides must fit too, so a
// dimension of 0 does not excuse the others. No dimension may be negative.
std::optional<std::uint64_t> contiguous_bytes(std::span<const std::int64_t> shape,
                                              at::ScalarType dtype);

class TensorFile {
 public:
  // By the name's extension: .pth, else safetensors. Reads no tensor. Throws as PthFile::open and
  // SafetensorsFile::open.
  static TensorFile open(const std::filesystem::path& path);

  const std::filesystem::path& path() const;
  const std::map<std::string, TensorEntry, std::less<>>& entries() const;
  // What a safetensors file says about itself ("__metadata__"); empty for other formats.
  const std::map<std::string, std::string>& metadata() const;
  // A CPU tensor that views the map, which it keeps alive. The map is read-only: writing to the
  // tensor ends the process. A copy where the bytes are not aligned for the dtype. Throws
  // InputError for an unknown name, and for BOOL bytes other than 0 and 1.
  Tensor view(std::string_view name) const;
  std::span<const std::byte> bytes(std::string_view name) const;  // as stored; valid while open
  // Copies bytes of a tensor from `offset` within it on; from any thread. Throws RunError where the
  // file has become shorter or cannot be read.
  void read(const TensorEntry& entry, std::uint64_t offset, std::span<std::byte> into) const;
  double cached_share() const;  // which part of the file the system holds in memory, 0 to 1
  // Of some bytes of a tensor, from `begin` within it on.
  double cached_share(const TensorEntry& entry, std::uint64_t begin, std::uint64_t bytes) const;
  int descriptor() const;                               // the open file's
  void expect_sequential_reads(bool sequential) const;  // advice to the system

 protected:
  struct State {
    explicit State(const std::filesystem::path& file_path) : path(file_path), map(file_path) {}
    std::filesystem::path path;
    MappedFile map;
    std::uint64_t data_begin = 0;  // of the data section, in bytes of the file
    std::map<std::string, TensorEntry, std::less<>> entries;
    std::map<std::string, std::string> metadata;
  };
  explicit TensorFile(std::shared_ptr<const State> state) : state_(std::move(state)) {}

 private:
  const TensorEntry& entry(std::string_view name) const;
  std::shared_ptr<const State> state_;
};

}  // namespace diptych
