// Recorded cases of samplers and guidance.
#pragma once

#include <algorithm>
#include <filesystem>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include "lib/tensor/safetensors.h"
#include "tests/verify/goldens.h"

namespace diptych::test {

// Cases of that name: the choice in the repository, and the whole one where the full set is.
inline std::vector<std::filesystem::path> recorded_guidance(const std::string& name) {
  std::vector<std::filesystem::path> folders;
  for (const auto& goldens : goldens_of("wan")) {
    for (const char* part : {"guidance", "cases"}) {
      const auto folder = goldens / part / name;
      if (std::filesystem::exists(folder / "case.json")) folders.push_back(folder);
    }
  }
  REQUIRE_FALSE(folders.empty());
  return folders;
}

inline SafetensorsFile expected_of(const std::filesystem::path& folder) {
  return SafetensorsFile::open(folder / "expected.safetensors");
}

inline bool has(const SafetensorsFile& file, const std::string& name) {
  return file.entries().contains(name);
}

inline double largest_difference(const Tensor& found, const Tensor& expected) {
  REQUIRE(found.sizes() == expected.sizes());
  return (found - expected).abs().max().item<double>();
}

inline std::vector<float> floats(const Tensor& tensor) {
  const Tensor values = tensor.to(at::kFloat).contiguous();
  const float* data = values.const_data_ptr<float>();
  return {data, data + values.numel()};
}

}  // namespace diptych::test
