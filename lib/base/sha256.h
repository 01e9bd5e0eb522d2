// SHA-256 (FIPS 180-4), streaming. For naming weights and latents, not for keeping secrets.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace diptych {

class Sha256 {
 public:
  static constexpr std::size_t kDigestBytes = 32;
  void update(std::span<const std::byte> bytes);
  void update(std::string_view text) { update(std::as_bytes(std::span(text))); }
  std::array<std::byte, kDigestBytes> finish();  // once, after the last update
  std::string finish_hex();                      // the same as 64 lower-case hex digits

 private:
  static constexpr std::size_t kBlockBytes = 64;
  void compress(const std::byte* block);
  std::array<std::uint32_t, 8> state_ = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                         0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  std::array<std::byte, kBlockBytes> pending_{};
  std::size_t pending_bytes_ = 0;
  std::uint64_t total_bytes_ = 0;
};

std::string sha256_hex(std::span<const std::byte> bytes);
// Of a file's content; nothing where it cannot be read.
std::optional<std::string> file_sha256(const std::filesystem::path& file);

}  // namespace diptych
