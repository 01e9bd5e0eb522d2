#include "lib/tensor/tensor_file.h"

#include <algorithm>
#include <cstring>

#include "lib/base/error.h"
#include "lib/tensor/pth.h"
#include "lib/tensor/safetensors.h"
#include "lib/tensor/tensor_names.h"

namespace diptych {

std::optional<std::uint64_t> contiguous_bytes(std::span<const std::int64_t> shape,
                                              at::ScalarType dtype) {
  auto bytes = static_cast<std::int64_t>(c10::elementSize(dtype));
  bool empty = false;
  for (const std::int64_t size : shape) {
    empty = empty || size == 0;
    if (__builtin_mul_overflow(bytes, std::max<std::int64_t>(size, 1), &bytes)) return std::nullopt;
  }
  return empty ? 0 : static_cast<std::uint64_t>(bytes);
}

TensorFile TensorFile::open(const std::filesystem::path& path) {
  if (path.extension() == kPthExtension) return PthFile::open(path);
  return SafetensorsFile::open(path);
}

const std::filesystem::path& TensorFile::path() const {
  return state_->path;
}

const std::map<std::string, TensorEntry, std::less<>>& TensorFile::entries() const {
  return state_->entries;
}

const std::map<std::string, std::string>& TensorFile::metadata() const {
  return state_->metadata;
}

const TensorEntry& TensorFile::entry(std::string_view name) const {
  const auto found = entries().find(name);
  if (found == entries().end()) {
    throw InputError("{}: has no tensor {}", path().string(), shown_name(name));
  }
  return found->second;
}

std::span<const std::byte> TensorFile::bytes(std::string_view name) const {
  const TensorEntry& found = entry(name);
  return state_->map.bytes().subspan(state_->data_begin + found.begin, found.end - found.begin);
}

Tensor TensorFile::view(std::string_view name) const {
  const TensorEntry& found = entry(name);
  const auto data = bytes(name);
  const auto options = at::TensorOptions().device(at::kCPU).dtype(found.dtype);
  if (data.empty()) return at::empty(found.shape, options);
  if (found.dtype == at::kBool) {  // any other value in a bool is undefined behaviour
    const auto* const bad =
        std::ranges::find_if(data, [](std::byte b) { return b > std::byte{1}; }).base();
    if (bad != data.data() + data.size()) {
      throw InputError("{}: BOOL tensor {} holds the byte {}, expected 0 or 1", path().string(),
                       shown_name(name), std::to_integer<int>(*bad));
    }
  }
  if (reinterpret_cast<std::uintptr_t>(data.data()) % c10::elementSize(found.dtype) != 0) {
    Tensor copy = at::empty(found.shape, options);
    std::memcpy(copy.mutable_data_ptr(), data.data(), data.size());
    return copy;
  }
  return at::from_blob(
      const_cast<std::byte*>(data.data()), found.shape, [keep = state_](void*) {}, options);
}

void TensorFile::read(const TensorEntry& entry, std::uint64_t offset,
                      std::span<std::byte> into) const {
  state_->map.read(state_->data_begin + entry.begin + offset, into);
}

double TensorFile::cached_share() const {
  return state_->map.cached_share(0, state_->map.bytes().size());
}

double TensorFile::cached_share(const TensorEntry& entry, std::uint64_t begin,
                                std::uint64_t bytes) const {
  const std::uint64_t at = state_->data_begin + entry.begin + begin;
  return state_->map.cached_share(at, at + bytes);
}

int TensorFile::descriptor() const {
  return state_->map.descriptor();
}

void TensorFile::expect_sequential_reads(bool sequential) const {
  state_->map.expect_sequential_reads(sequential);
}

}  // namespace diptych
