#include "lib/tensor/safetensors.h"

#include <algorithm>
#include <cstring>

#include "lib/base/error.h"
#include "lib/tensor/mapped_file.h"
#include "lib/tensor/safetensors_header.h"
#include "lib/tensor/tensor_names.h"

namespace diptych {

struct SafetensorsFile::State {
  State(const std::filesystem::path& file_path) : path(file_path), map(file_path) {}
  std::filesystem::path path;
  MappedFile map;
  SafetensorsHeader header;
  std::span<const std::byte> data;  // what stands behind the header
};

SafetensorsFile SafetensorsFile::open(const std::filesystem::path& path) {
  constexpr std::uint64_t kLengthBytes = 8,
                          kMaxHeaderBytes = 100'000'000;  // as the reference reader
  auto state = std::make_shared<State>(path);
  const auto bytes = state->map.bytes();
  if (bytes.size() < kLengthBytes) {
    throw InputError("{}: holds {} bytes, too short for a safetensors file", path.string(),
                     bytes.size());
  }
  std::uint64_t length = 0;
  for (std::size_t i = 0; i < kLengthBytes; ++i) {
    length |= std::to_integer<std::uint64_t>(bytes[i]) << (8 * i);
  }
  if (length > kMaxHeaderBytes) {
    throw InputError("{}: header length {} is over {}: not a safetensors file", path.string(),
                     length, kMaxHeaderBytes);
  }
  const auto rest = bytes.subspan(kLengthBytes);
  if (length > rest.size()) {
    throw InputError("{}: header length {} reaches beyond the file, {} bytes follow it: truncated?",
                     path.string(), length, rest.size());
  }
  const std::string_view text(reinterpret_cast<const char*>(rest.data()), length);
  state->data = rest.subspan(length);
  state->header = parse_safetensors_header(path, text, state->data.size());
  return SafetensorsFile(std::move(state));
}

const std::filesystem::path& SafetensorsFile::path() const {
  return state_->path;
}

const std::map<std::string, TensorEntry, std::less<>>& SafetensorsFile::entries() const {
  return state_->header.entries;
}

const std::map<std::string, std::string>& SafetensorsFile::metadata() const {
  return state_->header.metadata;
}

const TensorEntry& SafetensorsFile::entry(std::string_view name) const {
  const auto found = entries().find(name);
  if (found == entries().end()) {
    throw InputError("{}: has no tensor {}", path().string(), shown_name(name));
  }
  return found->second;
}

std::span<const std::byte> SafetensorsFile::bytes(std::string_view name) const {
  const TensorEntry& found = entry(name);
  return state_->data.subspan(found.begin, found.end - found.begin);
}

Tensor SafetensorsFile::view(std::string_view name) const {
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

void SafetensorsFile::read(const TensorEntry& entry, std::uint64_t offset,
                           std::span<std::byte> into) const {
  const auto data = static_cast<std::uint64_t>(state_->data.data() - state_->map.bytes().data());
  state_->map.read(data + entry.begin + offset, into);
}

double SafetensorsFile::cached_share() const {
  return state_->map.cached_share();
}

int SafetensorsFile::descriptor() const {
  return state_->map.descriptor();
}

void SafetensorsFile::expect_sequential_reads(bool sequential) const {
  state_->map.expect_sequential_reads(sequential);
}

}  // namespace diptych
