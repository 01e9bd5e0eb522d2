#include "lib/tensor/kept_hash.h"

#include <algorithm>
#include <system_error>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <sys/stat.h>

#include "lib/base/atomic_file.h"
#include "lib/base/error.h"
#include "lib/base/json_file.h"
#include "lib/base/sha256.h"

namespace diptych {
namespace {

namespace fs = std::filesystem;

struct Identity {
  std::string text;
  KeptHash::Clock::time_point changed;  // the last time, of content or inode
};

KeptHash::Clock::time_point time_of(const timespec& time) {
  using std::chrono::duration_cast;
  return KeptHash::Clock::time_point(duration_cast<KeptHash::Clock::duration>(
      std::chrono::seconds(time.tv_sec) + std::chrono::nanoseconds(time.tv_nsec)));
}

std::optional<Identity> identity_of(const CheckpointFiles& checkpoint) {
  Identity identity;
  for (const TensorFile& file : checkpoint.files) {
    struct stat status {};
    if (fstat(file.descriptor(), &status) != 0) return std::nullopt;
    identity.text += fmt::format("{}:{} {} {}.{:09} {}.{:09}\n", status.st_dev, status.st_ino,
                                 status.st_size, status.st_mtim.tv_sec, status.st_mtim.tv_nsec,
                                 status.st_ctim.tv_sec, status.st_ctim.tv_nsec);
    identity.changed =
        std::max({identity.changed, time_of(status.st_mtim), time_of(status.st_ctim)});
  }
  return identity;
}

fs::path file_name(const fs::path& folder, const std::string& identity) {
  const std::string name = sha256_hex(std::as_bytes(std::span(identity)));
  return folder / "weights" / (name.substr(0, 32) + ".json");
}

}  // namespace

KeptHash::KeptHash(const CheckpointFiles& checkpoint, std::optional<fs::path> folder)
    : checkpoint_(checkpoint), folder_(std::move(folder)) {
  if (const auto identity = identity_of(checkpoint)) identity_ = identity->text;
}

std::optional<std::string> KeptHash::find() const {
  if (!folder_ || identity_.empty()) return std::nullopt;
  const fs::path file = file_name(*folder_, identity_);
  std::error_code ignored;
  if (!fs::is_regular_file(file, ignored)) return std::nullopt;
  try {
    const nlohmann::json kept = read_json_object(file);
    if (kept.at("files").get<std::string>() != identity_) return std::nullopt;
    return kept.at("sha256").get<std::string>();
  } catch (const InputError&) {  // of another program, or cut short by a full disk
    return std::nullopt;
  } catch (const nlohmann::json::exception&) {
    return std::nullopt;
  }
}

void KeptHash::keep(const std::string& hash) const {
  constexpr std::chrono::seconds kSettled(2);
  if (!folder_ || identity_.empty()) return;
  const auto now = identity_of(checkpoint_);
  if (!now || now->text != identity_ || now->changed > taken_ - kSettled) return;
  const fs::path path = file_name(*folder_, identity_);
  std::error_code failed;
  fs::create_directories(path.parent_path(), failed);
  if (failed) return;
  try {
    AtomicFile file(path);
    file.write(nlohmann::json{{"files", identity_}, {"sha256", hash}}.dump(1) + "\n");
    file.commit();
  } catch (const InputError&) {
  } catch (const WriteError&) {
  }
}

}  // namespace diptych
