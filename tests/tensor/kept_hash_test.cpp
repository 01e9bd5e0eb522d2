#include "lib/tensor/kept_hash.h"

#include <thread>

#include <fcntl.h>
#include <unistd.h>

#include "lib/tensor/checkpoint_hash.h"
#include "lib/tensor/safetensors.h"
#include "tests/tensor/support.h"

namespace diptych {
namespace {

namespace fs = std::filesystem;

void write_model(const fs::path& path, double value) {
  write_safetensors(path, std::vector<std::pair<std::string, Tensor>>{
                              {"a", at::full({3, 5}, value)}, {"b", at::arange(4, at::kLong)}});
}

std::vector<fs::path> kept_files(const fs::path& cache) {
  std::vector<fs::path> files;
  if (!fs::exists(cache / "weights")) return files;
  for (const auto& item : fs::directory_iterator(cache / "weights")) files.push_back(item.path());
  return files;
}

TEST_CASE("checkpoint_hash: kept for files that have settled, and only for these") {
  const test::Folder folder;
  const fs::path path = folder / "m.safetensors", cache = folder / "cache";
  write_model(path, 1.5);
  const std::string hash = checkpoint_hash(open_checkpoint(path), {}, cache);
  CHECK(hash == checkpoint_hash(open_checkpoint(path)));
  CHECK(kept_files(cache).empty());  // changed a moment ago: a second change could look the same

  std::this_thread::sleep_for(std::chrono::milliseconds(2100));
  const CheckpointFiles settled = open_checkpoint(path);
  CHECK(checkpoint_hash(settled, {}, cache) == hash);
  REQUIRE(kept_files(cache).size() == 1);
  CHECK(KeptHash(settled, cache).find() == hash);
  CHECK_FALSE(KeptHash(settled, std::nullopt).find());
  CHECK_FALSE(KeptHash(settled, folder / "elsewhere").find());

  // It is believed: that is what makes it quick.
  write_file(kept_files(cache).front(), [&] {
    std::string text = read_file(kept_files(cache).front());
    return text.replace(text.find(hash), hash.size(), std::string(64, 'f'));
  }());
  CHECK(checkpoint_hash(settled, {}, cache) == std::string(64, 'f'));

  // Broken or of something else: hashed anew.
  write_file(kept_files(cache).front(), "{\"files\": ");
  CHECK(checkpoint_hash(settled, {}, cache) == hash);
  write_file(kept_files(cache).front(), "{\"files\": \"1:2 3\", \"sha256\": \"00\"}");
  CHECK(checkpoint_hash(settled, {}, cache) == hash);

  // Written to in place, replaced, or touched: another identity.
  write_model(path, 2.5);
  const std::string other = checkpoint_hash(open_checkpoint(path), {}, cache);
  CHECK(other != hash);
  CHECK(other == checkpoint_hash(open_checkpoint(path)));
}

TEST_CASE("checkpoint_hash: a cache folder that cannot be written is no error") {
  const test::Folder folder;
  write_model(folder / "m.safetensors", 1);
  write_file(folder / "file", "");
  std::this_thread::sleep_for(std::chrono::milliseconds(2100));
  const CheckpointFiles files = open_checkpoint(folder / "m.safetensors");
  const std::string hash = checkpoint_hash(files, {}, folder / "file");
  CHECK(hash == checkpoint_hash(files));
  CHECK(hash.size() == 64);
}

TEST_CASE("checkpoint_hash: the same of a file in memory and of one on the disk alone") {
  const test::Folder folder;
  const fs::path path = folder / "m.safetensors";
  write_safetensors(path, std::vector<std::pair<std::string, Tensor>>{
                              {"a", at::arange(500'000, at::kFloat)},
                              {"b", at::arange(17'000'003, at::kInt)},  // two pieces
                              {"c", at::arange(300'001, at::kLong)}});
  const CheckpointFiles files = open_checkpoint(path);
  const TensorFile& file = files.files.front();
  const std::string hash = checkpoint_hash(files);
  REQUIRE(fsync(file.descriptor()) == 0);
  REQUIRE(posix_fadvise(file.descriptor(), 0, 0, POSIX_FADV_DONTNEED) == 0);
  if (file.cached_share() > 0.5) MESSAGE("this file system keeps files in memory");
  CHECK(checkpoint_hash(files) == hash);
}

TEST_CASE("checkpoint_hash: a file cut short while it is hashed is named") {
  const test::Folder folder;
  const fs::path path = folder / "m.safetensors";
  write_model(path, 1);
  const CheckpointFiles files = open_checkpoint(path);
  fs::resize_file(path, 150);
  CHECK_THROWS_AS(checkpoint_hash(files), RunError);
}

}  // namespace
}  // namespace diptych
