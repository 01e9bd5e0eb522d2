// The recorded tiny text encoders of Wan (UMT5) and Cosmos (T5).
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "lib/models/umt5/umt5.h"
#include "lib/tensor/safetensors.h"
#include "tests/support/folder.h"

namespace diptych::umt5_inputs {

namespace fs = std::filesystem;

inline const fs::path kGoldens = fs::path(DIPTYCH_SOURCE_DIR) / "tests/goldens/t5";

inline Weights recorded(const fs::path& file) {
  return Weights::open(file, at::kCPU, at::kFloat);
}

inline Tensor get(const Weights& weights, std::string_view name,
                  at::ScalarType dtype = at::kFloat) {
  return weights.as(dtype).get(name, weights.shape(name));
}

inline Umt5Config config_of(const std::string& family) {
  return Umt5Config::load(kGoldens / family / "config.json");
}

// The repository holds the rows of the embedding that the recorded prompts read. Writes the
// weights as a released file has them: all other rows are zero.
inline fs::path whole_weights(const std::string& family, const test::Folder& folder,
                              std::vector<const char*> embedding_names = {"shared.weight"}) {
  const Umt5Config config = config_of(family);
  const Weights excerpt = recorded(kGoldens / family / "text_encoder.safetensors");
  const Tensor shared = at::zeros({config.vocab_size, config.d_model});
  shared.index_copy_(0, get(excerpt, "shared.ids", at::kLong), get(excerpt, "shared.rows"));
  std::vector<std::pair<std::string, Tensor>> tensors;
  for (const char* name : embedding_names) tensors.emplace_back(name, shared);
  for (const TensorShape& tensor : umt5_layout(config)) {
    if (tensor.name != "shared.weight")
      tensors.emplace_back(tensor.name, get(excerpt, tensor.name));
  }
  const fs::path file = folder / (family + ".safetensors");
  write_safetensors(file, tensors);
  return file;
}

inline Umt5 load(const std::string& family, at::ScalarType dtype = at::kFloat,
                 at::Device device = at::kCPU) {
  const test::Folder folder;
  const Weights weights = Weights::open(whole_weights(family, folder), device, dtype);
  Umt5 model = Umt5::load(weights, config_of(family));
  weights.require_all_read();
  return model;
}

inline std::vector<std::int64_t> ids_of(const Tensor& ids) {
  return {ids.const_data_ptr<std::int64_t>(), ids.const_data_ptr<std::int64_t>() + ids.numel()};
}

inline double relative_norm(const Tensor& found, const Tensor& expected) {
  return ((found.cpu().to(at::kFloat) - expected).norm() / expected.norm()).item<double>();
}

}  // namespace diptych::umt5_inputs
