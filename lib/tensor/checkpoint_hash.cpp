#include "lib/tensor/checkpoint_hash.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <thread>

#include <fmt/format.h>

#include "lib/base/sha256.h"
#include "lib/tensor/dtype.h"
#include "lib/tensor/tensor_names.h"

namespace diptych {
namespace {

constexpr std::size_t kPieceBytes = std::size_t{64} << 20;

using Digest = std::array<std::byte, Sha256::kDigestBytes>;

std::vector<Digest> hash_pieces(const std::vector<std::span<const std::byte>>& pieces,
                                const std::stop_token& stop) {
  std::vector<Digest> digests(pieces.size());
  std::atomic<std::size_t> next = 0;
  const auto work = [&] {
    for (std::size_t i = next++; i < pieces.size() && !stop.stop_requested(); i = next++) {
      Sha256 hash;
      hash.update(pieces[i]);
      digests[i] = hash.finish();
    }
  };
  // Two cores are left to whatever the run does meanwhile.
  const std::size_t cores = std::max(3U, std::thread::hardware_concurrency()) - 2;
  const std::size_t workers =
      std::clamp<std::size_t>(cores, 1, std::max<std::size_t>(pieces.size(), 1));
  std::vector<std::jthread> threads;
  for (std::size_t i = 1; i < workers; ++i) threads.emplace_back(work);
  work();
  threads.clear();  // joins
  return digests;
}

}  // namespace

std::string checkpoint_hash(const CheckpointFiles& checkpoint, const std::stop_token& stop) {
  std::vector<std::span<const std::byte>> pieces;
  std::vector<std::pair<std::string, std::size_t>> parts;  // description, number of pieces
  for (const auto& [name, place] : checkpoint.owner) {
    const SafetensorsFile& file = checkpoint.files[place];
    const TensorEntry& entry = file.entries().find(name)->second;
    auto bytes = file.bytes(name);
    const std::size_t count = (bytes.size() + kPieceBytes - 1) / kPieceBytes;
    for (std::size_t i = 0; i < count; ++i) {
      const std::size_t taken = std::min(bytes.size(), kPieceBytes);
      pieces.push_back(bytes.first(taken));
      bytes = bytes.subspan(taken);
    }
    // The length in front of the name keeps two different lists from reading the same.
    parts.emplace_back(fmt::format("{}:{}{}{}", name.size(), name, dtype_name(entry.dtype),
                                   shown_shape(entry.shape)),
                       count);
  }
  const auto digests = hash_pieces(pieces, stop);
  if (stop.stop_requested()) return "";
  Sha256 hash;
  auto digest = digests.begin();
  for (const auto& [description, count] : parts) {
    hash.update(description);
    for (std::size_t i = 0; i < count; ++i) hash.update(*digest++);
  }
  return hash.finish_hex();
}

}  // namespace diptych
