// The .pth files of torch.save: a zip archive of a pickled state dict and a record for each
// storage.
#pragma once

#include <filesystem>
#include <string_view>

#include "lib/tensor/tensor_file.h"

namespace diptych {

inline constexpr std::string_view kPthExtension = ".pth";

class PthFile : public TensorFile {
 public:
  // Reads the archive's directory and the pickle; runs nothing. Throws InputError naming the file
  // as archive_records() and read_state_dict(), and for: no data.pkl, a missing storage, a
  // record of another size than its storage, tensors that reach beyond their storage or are not
  // contiguous, big-endian numbers.
  static PthFile open(const std::filesystem::path& path);

 private:
  using TensorFile::TensorFile;
};

}  // namespace diptych
