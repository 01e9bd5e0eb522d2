// What the tests of lib/media share.
#pragma once

#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "lib/base/error.h"
#include "lib/base/sha256.h"
#include "lib/tensor/types.h"

namespace diptych::test {

inline std::filesystem::path pictures_folder() {
  return std::filesystem::path(DIPTYCH_SOURCE_DIR) / "tests/media/pictures";
}

inline std::vector<int> levels(const Tensor& pixels) {
  const Tensor flat = pixels.contiguous().flatten();
  const auto* data = flat.const_data_ptr<std::uint8_t>();
  return {data, data + flat.numel()};
}

inline std::string pixel_hash(const Tensor& rgb) {
  TORCH_CHECK(rgb.is_contiguous());
  const std::span pixels(rgb.const_data_ptr<std::uint8_t>(), static_cast<std::size_t>(rgb.numel()));
  return sha256_hex(std::as_bytes(pixels));
}

// The text of the InputError that a call ends in.
template <typename Call>
std::string input_error(const Call& call) {
  try {
    call();
  } catch (const InputError& error) {
    return error.what();
  }
  return "no error";
}

}  // namespace diptych::test
