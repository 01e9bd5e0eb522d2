// The pickle of a state dict as torch.save writes it (protocol 2), from bytes that nobody has
// checked before. It is data here: no object is made and nothing is run.
// Format: CPython Lib/pickletools.py; what torch puts into it: torch/serialization.py `_save` and
// torch/_utils.py `_rebuild_tensor_v2` and `_rebuild_parameter` of PyTorch 2.11.
// libtorch's own torch::jit::Unpickler is not used. It cannot read an OrderedDict, which
// state_dict() returns, and bytes made to hurt cost it gigabytes, an endless loop or a crash.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "lib/tensor/types.h"

namespace diptych {

// A tensor as a part of a storage, which is a record of the archive.
struct StoredView {
  std::string storage;  // "data/<storage>" is the record
  at::ScalarType dtype = at::kFloat;
  std::int64_t storage_elements = 0;  // the record holds as many
  std::int64_t offset = 0;            // elements before the first
  std::vector<std::int64_t> shape, strides;
};

// Name and tensor in the order of the dict, which may be an OrderedDict and have attributes. Sizes
// and offsets are as they stand there: not yet held against each other. Throws InputError naming
// `path` and the byte for everything else: other opcodes, classes and functions, values that are
// not tensors, nested values, a name that appears twice, more than 16 MiB.
std::vector<std::pair<std::string, StoredView>> read_state_dict(const std::filesystem::path& path,
                                                                std::span<const std::byte> pickle);

}  // namespace diptych
