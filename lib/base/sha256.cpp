#include "lib/base/sha256.h"

#include <fstream>
#include <map>
#include <vector>

#include <openssl/evp.h>

#include "lib/base/error.h"

namespace diptych {
namespace {

void require(int done) {
  if (done != 1) throw RunError("SHA-256: OpenSSL refuses it");
}

}  // namespace

void Sha256::Free::operator()(evp_md_ctx_st* context) const {
  EVP_MD_CTX_free(context);
}

Sha256::Sha256() : context_(EVP_MD_CTX_new()) {
  require(context_ == nullptr ? 0 : EVP_DigestInit_ex(context_.get(), EVP_sha256(), nullptr));
}

void Sha256::update(std::span<const std::byte> bytes) {
  require(EVP_DigestUpdate(context_.get(), bytes.data(), bytes.size()));
}

std::array<std::byte, Sha256::kDigestBytes> Sha256::finish() {
  std::array<std::byte, kDigestBytes> digest;
  require(
      EVP_DigestFinal_ex(context_.get(), reinterpret_cast<unsigned char*>(digest.data()), nullptr));
  return digest;
}

std::string Sha256::finish_hex() {
  std::string hex;
  for (const std::byte byte : finish()) {
    hex += "0123456789abcdef"[std::to_integer<unsigned>(byte) >> 4];
    hex += "0123456789abcdef"[std::to_integer<unsigned>(byte) & 15];
  }
  return hex;
}

std::string sha256_hex(std::span<const std::byte> bytes) {
  Sha256 hash;
  hash.update(bytes);
  return hash.finish_hex();
}

namespace {

std::optional<std::string> plain_file_sha256(const std::filesystem::path& file) {
  std::error_code ignored;
  if (!std::filesystem::is_regular_file(file, ignored)) return std::nullopt;
  std::ifstream stream(file, std::ios::binary);
  if (!stream) return std::nullopt;
  Sha256 hash;
  std::vector<char> buffer(std::size_t{1} << 20);
  do {
    stream.read(buffer.data(), static_cast<std::streamsize>(buffer.size()));
    hash.update(std::string_view(buffer.data(), static_cast<std::size_t>(stream.gcount())));
  } while (stream);
  if (stream.bad()) return std::nullopt;
  return hash.finish_hex();
}

std::optional<std::string> folder_sha256(const std::filesystem::path& folder) {
  std::error_code error;
  std::map<std::string, std::string> hashes;  // by name
  for (std::filesystem::directory_iterator entry(folder, error), end; !error && entry != end;
       entry.increment(error)) {
    auto hash = plain_file_sha256(entry->path());
    if (!hash) return std::nullopt;
    hashes.emplace(entry->path().filename().string(), *std::move(hash));
  }
  if (error) return std::nullopt;
  Sha256 all;
  for (const auto& [name, hash] : hashes) all.update(hash + "  " + name + "\n");
  return all.finish_hex();
}

}  // namespace

std::optional<std::string> file_sha256(const std::filesystem::path& file) {
  std::error_code ignored;
  return std::filesystem::is_directory(file, ignored) ? folder_sha256(file)
                                                      : plain_file_sha256(file);
}

}  // namespace diptych
