// The JSON header of a safetensors file, from bytes that nobody has checked before.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <string_view>

#include "lib/tensor/safetensors.h"

namespace diptych {

struct SafetensorsHeader {
  std::map<std::string, TensorEntry, std::less<>> entries;
  std::map<std::string, std::string> metadata;
};

// `text` is the header, `data_bytes` the size of the data section behind it. Every entry returned
// has a shape whose bytes fit int64 and equal its span; the spans tile the data section exactly.
// Throws InputError naming `path`, the tensor, what was found and what was expected.
SafetensorsHeader parse_safetensors_header(const std::filesystem::path& path, std::string_view text,
                                           std::uint64_t data_bytes);

}  // namespace diptych
