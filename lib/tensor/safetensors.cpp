#include "lib/tensor/safetensors.h"

#include "lib/base/error.h"
#include "lib/tensor/safetensors_header.h"

namespace diptych {

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
  SafetensorsHeader header = parse_safetensors_header(path, text, rest.size() - length);
  state->data_begin = kLengthBytes + length;
  state->entries = std::move(header.entries);
  state->metadata = std::move(header.metadata);
  return SafetensorsFile(std::move(state));
}

}  // namespace diptych
