#include "lib/tensor/checkpoint_hash.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <exception>
#include <mutex>
#include <optional>
#include <thread>

#include <fmt/format.h>

#include "lib/base/sha256.h"
#include "lib/tensor/dtype.h"
#include "lib/tensor/kept_hash.h"
#include "lib/tensor/tensor_names.h"

namespace diptych {
namespace {

constexpr std::uint64_t kPieceBytes = std::uint64_t{64} << 20;

using Digest = std::array<std::byte, Sha256::kDigestBytes>;

// A part of a tensor's bytes.
struct Piece {
  const TensorFile* file = nullptr;
  const TensorEntry* entry = nullptr;
  std::uint64_t begin = 0, bytes = 0;
};

// `buffer`: what is read at once; it stays in the core's cache.
Digest hash_piece(const Piece& piece, std::span<std::byte> buffer) {
  Sha256 hash;
  for (std::uint64_t done = 0; done < piece.bytes;) {
    const auto part = buffer.first(std::min<std::uint64_t>(buffer.size(), piece.bytes - done));
    piece.file->read(*piece.entry, piece.begin + done, part);
    hash.update(part);
    done += part.size();
  }
  return hash.finish();
}

// Places of pieces, which threads take one by one.
class Queue {
 public:
  void add(std::size_t piece) { pieces_.push_back(piece); }
  std::optional<std::size_t> take() {
    const std::size_t i = next_++;
    return i < pieces_.size() ? std::optional(pieces_[i]) : std::nullopt;
  }
  std::size_t size() const { return pieces_.size(); }
  void close() { next_ = pieces_.size(); }

 private:
  std::vector<std::size_t> pieces_;
  std::atomic<std::size_t> next_ = 0;
};

// What lies on the disk alone is read from the first moment on, by a few threads more: they wait
// most of the time, while the others hash what the system holds in memory.
std::vector<Digest> hash_pieces(const std::vector<Piece>& pieces, const std::stop_token& stop) {
  constexpr std::size_t kBufferBytes = std::size_t{1} << 20, kDiskReaders = 4;
  std::vector<Digest> digests(pieces.size());
  Queue cached, on_disk;
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    const auto& [file, entry, begin, bytes] = pieces[i];
    (file->cached_share(*entry, begin, bytes) < 0.5 ? on_disk : cached).add(i);
  }
  std::mutex failing;
  std::exception_ptr failure;
  const auto work = [&](const std::vector<Queue*>& queues) {
    const auto next = [&] {
      std::optional<std::size_t> piece;
      for (Queue* const queue : queues) {
        if (!piece) piece = queue->take();
      }
      return piece;
    };
    try {
      std::vector<std::byte> buffer(kBufferBytes);
      for (auto piece = next(); piece && !stop.stop_requested(); piece = next())
        digests[*piece] = hash_piece(pieces[*piece], buffer);
    } catch (...) {
      const std::lock_guard lock(failing);
      failure = std::current_exception();
      cached.close();
      on_disk.close();
    }
  };
  // Two cores are left to whatever the run does meanwhile.
  const std::size_t cores = std::max(3U, std::thread::hardware_concurrency()) - 2;
  const std::vector<Queue*> of_disk{&on_disk}, of_all{&cached, &on_disk};
  std::vector<std::jthread> threads;
  for (std::size_t i = 0; i < std::min(kDiskReaders, on_disk.size()); ++i)
    threads.emplace_back(work, of_disk);
  for (std::size_t i = 1; i < std::min(cores, pieces.size()); ++i)
    threads.emplace_back(work, of_all);
  work(of_all);
  threads.clear();  // joins
  if (failure) std::rethrow_exception(failure);
  return digests;
}

std::string hash_files(const CheckpointFiles& checkpoint, const std::stop_token& stop) {
  std::vector<Piece> pieces;
  std::vector<std::pair<std::string, std::size_t>> parts;  // description, number of pieces
  for (const auto& [name, place] : checkpoint.owner) {
    const TensorFile& file = checkpoint.files[place];
    const TensorEntry& entry = file.entries().find(name)->second;
    const std::uint64_t bytes = entry.end - entry.begin;
    const std::size_t before = pieces.size();
    for (std::uint64_t begin = 0; begin < bytes; begin += kPieceBytes) {
      pieces.push_back({&file, &entry, begin, std::min(bytes - begin, kPieceBytes)});
    }
    // The length in front of the name keeps two different lists from reading the same.
    parts.emplace_back(fmt::format("{}:{}{}{}", name.size(), name, dtype_name(entry.dtype),
                                   shown_shape(entry.shape)),
                       pieces.size() - before);
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

}  // namespace

std::string checkpoint_hash(const CheckpointFiles& checkpoint, const std::stop_token& stop,
                            const std::optional<std::filesystem::path>& cache) {
  const KeptHash kept(checkpoint, cache);
  if (auto hash = kept.find()) return *std::move(hash);
  std::string hash = hash_files(checkpoint, stop);
  if (!hash.empty()) kept.keep(hash);
  return hash;
}

}  // namespace diptych
