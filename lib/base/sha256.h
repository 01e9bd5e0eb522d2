// SHA-256 (FIPS 180-4) by OpenSSL, streaming. For naming weights and latents, not for keeping
// secrets.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

struct evp_md_ctx_st;  // OpenSSL's EVP_MD_CTX

namespace diptych {

class Sha256 {
 public:
  static constexpr std::size_t kDigestBytes = 32;
  Sha256();  // throws RunError where OpenSSL is set up to refuse SHA-256
  void update(std::span<const std::byte> bytes);
  void update(std::string_view text) { update(std::as_bytes(std::span(text))); }
  std::array<std::byte, kDigestBytes> finish();  // once, after the last update
  std::string finish_hex();                      // the same as 64 lower-case hex digits

 private:
  struct Free {
    void operator()(evp_md_ctx_st* context) const;
  };
  std::unique_ptr<evp_md_ctx_st, Free> context_;
};

std::string sha256_hex(std::span<const std::byte> bytes);
// Of a file's content; of a folder of files that of what `sha256sum *` prints in it. Nothing where
// it cannot be read, and for a folder with folders.
std::optional<std::string> file_sha256(const std::filesystem::path& file);

}  // namespace diptych
