// The tensor files behind one checkpoint path, and which of them holds each tensor.
#pragma once

#include <cstddef>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "lib/tensor/tensor_file.h"

namespace diptych {

struct CheckpointFiles {
  std::filesystem::path path;  // the file or index that was opened
  std::vector<TensorFile> files;
  std::map<std::string, std::size_t, std::less<>> owner;  // tensor name -> place in `files`
};

// `path`: a .safetensors or .pth file, an index (*.json with a "weight_map"), or a folder. In a
// folder the first of these counts: model.safetensors; the only *.safetensors.index.json; the only
// *.safetensors. Throws InputError: nothing of the kind, several of them (listed), an index that is
// broken, names a shard that is absent, or a tensor that its shard lacks.
CheckpointFiles open_checkpoint(const std::filesystem::path& path);

// Every .safetensors and .pth file of a checkpoint folder and of the folders in it, which hold the
// parts of a model; hidden folders are none. Sorted, those of the folder itself first. Throws
// InputError for a folder that cannot be read.
std::vector<std::filesystem::path> tensor_files_in(const std::filesystem::path& folder);

}  // namespace diptych
