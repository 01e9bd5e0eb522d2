// A folder of PNG frames that is there whole or not at all.
#pragma once

#include <cstdint>
#include <filesystem>

#include "lib/base/frame_rate.h"
#include "lib/media/image.h"

namespace diptych {

// Writes into "<path>.partial-<pid>"; finish() renames it. A destructor without finish() removes
// it, and the next writer to the same path what a killed process has left. Throws InputError where
// the folder above is missing or not writable, and where something stands at `path` that is no
// folder, or one with other files than frames; WriteError where a write fails, which names `path`.
class FolderWriter {
 public:
  FolderWriter(const std::filesystem::path& path, FrameRate fps);
  ~FolderWriter();
  FolderWriter(const FolderWriter&) = delete;
  FolderWriter& operator=(const FolderWriter&) = delete;

  void add(const Tensor& rgb);             // uint8 [height, width, 3]
  void finish(const PictureTexts& texts);  // which every frame holds, with its number and the rate

 private:
  void rename();

  std::filesystem::path path_;                // as it was given, for messages
  std::filesystem::path target_, temporary_;  // links followed
  FrameRate fps_;
  std::int64_t frames_ = 0;
};

}  // namespace diptych
