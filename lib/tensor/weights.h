// The tensors of a checkpoint below a name prefix, in the released layout, on the device and in the
// dtype the run wants. Remembers what was read, so that a load can prove nothing was left over.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "lib/tensor/safetensors.h"
#include "lib/tensor/types.h"

namespace diptych {

class Weights {
 public:
  // `path`: a .safetensors file, an index (*.safetensors.index.json), or a folder with one of
  // these. Opens the maps; reads no tensor. Throws InputError naming the file.
  static Weights open(const std::filesystem::path& path, at::Device device, at::ScalarType dtype);
  // No file: get() makes random weights of the asked shape on the device, normal with standard
  // deviation 1/sqrt(last dimension) for matrices, 1 + 0.1 n for one-dimensional tensors named
  // "weight", 0.1 n for biases; reproducible from `seed` and the order of calls.
  static Weights dummy(at::Device device, at::ScalarType dtype, std::uint64_t seed = 0);

  bool is_dummy() const;
  Weights scope(std::string_view prefix) const;  // scope("layers.3").scope("mlp"); shares the store
  Weights as(at::ScalarType dtype) const;        // the same view, loading in another dtype
  // A fresh contiguous tensor on the device in the dtype. Throws InputError with the full name and
  // the wanted and found shape; missing names with the nearest known name.
  Tensor get(std::string_view name, at::IntArrayRef shape) const;
  bool contains(std::string_view name) const;             // dummy: always true
  std::vector<std::int64_t> shape(std::string_view name) const;  // throws InputError when missing
  std::vector<std::string> unread() const;  // full names below this prefix that get() never read
  // Throws InputError listing up to five unread tensors, unless there are none.
  void require_all_read() const;
  std::string hash() const;  // sha-256 (hex) over names, dtypes, shapes and bytes of every file; slow

 private:
  struct Store;
  std::shared_ptr<Store> store_;
  std::string prefix_;
  at::ScalarType dtype_ = at::kFloat;
};

}  // namespace diptych
