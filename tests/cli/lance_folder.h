// A checkpoint of Lance without weights.
#pragma once

#include <filesystem>

namespace diptych::test {

// Makes a folder laid out as the released checkpoint, of links to the recorded one.
inline void link_lance(const std::filesystem::path& model) {
  const auto goldens = std::filesystem::path(DIPTYCH_SOURCE_DIR) / "tests/goldens/lance";
  std::filesystem::create_directory(model);
  for (const char* part : {"Lance_3B", "Lance_3B_Video"})
    std::filesystem::create_symlink(goldens / "checkpoint/Lance_3B", model / part);
  std::filesystem::create_symlink(goldens / "vit", model / "Qwen2.5-VL-ViT");
  std::filesystem::create_symlink(goldens / "checkpoint/Wan2.2_VAE.pth", model / "Wan2.2_VAE.pth");
}

}  // namespace diptych::test
