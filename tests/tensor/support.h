// Files for the tests: safetensors bytes put together by hand.
#pragma once

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>

#include <ATen/core/Tensor.h>
#include <doctest/doctest.h>
#include <fmt/format.h>

#include "lib/base/error.h"
#include "tests/support/folder.h"

namespace diptych {

inline void write_file(const std::filesystem::path& path, std::string_view bytes) {
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  file.close();
  REQUIRE(file.good());
}

inline std::string read_file(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  REQUIRE(file.good());
  return {std::istreambuf_iterator<char>(file), {}};
}

inline std::string length_field(std::uint64_t value) {
  std::string bytes;
  for (int i = 0; i < 8; ++i) bytes += static_cast<char>(value >> (8 * i) & 0xFF);
  return bytes;
}

inline std::string file_bytes(std::string_view header, std::string_view data) {
  return length_field(header.size()) + std::string(header) + std::string(data);
}

// A function because doctest cannot print a dtype.
inline bool has_dtype(const at::Tensor& tensor, at::ScalarType dtype) {
  return tensor.scalar_type() == dtype;
}

inline bool equal_bits(const at::Tensor& a, const at::Tensor& b) {
  return has_dtype(a, b.scalar_type()) && at::equal(a, b);
}

// The message of the InputError that `action` must end in.
template <typename Action>
std::string input_error(Action action) {
  try {
    action();
  } catch (const InputError& error) {
    return error.what();
  }
  FAIL("no InputError");
  return {};
}

inline void check_contains(const std::string& text, std::string_view part) {
  CAPTURE(part);
  CAPTURE(text);
  CHECK(text.find(part) != std::string::npos);
}

}  // namespace diptych
