#include "lib/batch/manifest.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <cstring>
#include <regex>
#include <thread>
#include <utility>

#include <fcntl.h>
#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <sys/stat.h>
#include <unistd.h>

#include "lib/base/atomic_file.h"
#include "lib/base/error.h"
#include "lib/base/file_kind.h"
#include "lib/base/text_file.h"

namespace diptych {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

constexpr std::array kMadeBy = {"device", "dtype", "quantization", "kernels", "attention"};

ManifestRecord record_of(const Json& json) {
  ManifestRecord record;
  record.id = json.at("id").get<std::string>();
  record.number = json.at("number").get<std::size_t>();
  const auto status = json.at("status").get<std::string>();
  record.ok = status == "ok";
  record.seconds = json.at("seconds").get<double>();
  record.seed = json.at("seed").get<std::uint64_t>();
  for (const char* key : kMadeBy) {
    if (json.contains(key)) record.made_by[key] = json[key].get<std::string>();
  }
  for (const Json& file : json.at("files"))
    record.files.push_back(
        {file.at("file").get<std::string>(), file.at("sha256").get<std::string>()});
  if (json.contains("prompt")) record.prompt = json["prompt"].get<std::string>();
  if (json.contains("prompt_given")) record.prompt_given = json["prompt_given"].get<std::string>();
  if (json.contains("text")) record.text = json["text"].get<std::string>();
  if (json.contains("plan")) record.plan = json["plan"].get<std::string>();
  if (json.contains("finish_reason"))
    record.finish_reason = json["finish_reason"].get<std::string>();
  if (!record.ok) record.error = json.at("error").get<std::string>();
  record.request = json.at("request").get<std::string>();
  return record;
}

// Locks of an open file, each of one byte of it; there need be no such byte.
enum class LockedByte : off_t { run, line };  // held for the whole run, and while lines are written

// `type`: F_RDLCK, F_WRLCK or F_UNLCK. Returns 0, or why not: EAGAIN where another has it.
int set_lock(int descriptor, LockedByte byte, short type, bool wait = false) {
  struct flock lock {};
  lock.l_type = type;
  lock.l_whence = SEEK_SET;
  lock.l_start = static_cast<off_t>(byte);
  lock.l_len = 1;
  for (;;) {
    if (fcntl(descriptor, wait ? F_OFD_SETLKW : F_OFD_SETLK, &lock) == 0) return 0;
    if (errno != EINTR) return errno == EACCES ? EAGAIN : errno;
  }
}

// While several processes may write lines.
class LineLock {
 public:
  LineLock(int descriptor, bool needed) : descriptor_(needed ? descriptor : -1) {
    if (needed) set_lock(descriptor_, LockedByte::line, F_WRLCK, /*wait=*/true);
  }
  ~LineLock() {
    if (descriptor_ >= 0) set_lock(descriptor_, LockedByte::line, F_UNLCK);
  }
  LineLock(const LineLock&) = delete;
  LineLock& operator=(const LineLock&) = delete;

 private:
  int descriptor_;
};

// Whether the open file is the one of that name.
bool is_at(int descriptor, const fs::path& file) {
  struct stat opened {
  }, named{};
  return fstat(descriptor, &opened) == 0 && stat(file.c_str(), &named) == 0 &&
         opened.st_dev == named.st_dev && opened.st_ino == named.st_ino;
}

}  // namespace

std::string ManifestRecord::line() const {
  Json json = {{"id", id},
               {"number", number},
               {"status", ok ? "ok" : "failed"},
               {"seconds", std::round(seconds * 1e3) / 1e3},
               {"seed", seed}};
  for (const char* key : kMadeBy) {
    if (const auto found = made_by.find(key); found != made_by.end()) json[key] = found->second;
  }
  json["files"] = Json::array();
  for (const File& file : files)
    json["files"].push_back({{"file", file.name}, {"sha256", file.sha256}});
  if (prompt) json["prompt"] = *prompt;
  if (prompt_given) json["prompt_given"] = *prompt_given;
  if (text) json["text"] = *text;
  if (plan) json["plan"] = *plan;
  if (!finish_reason.empty()) json["finish_reason"] = finish_reason;
  if (!ok) json["error"] = error;
  json["request"] = request;
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

std::optional<ManifestRecord> ManifestRecord::parse(const std::string& line) {
  try {
    return record_of(Json::parse(line));
  } catch (const Json::exception&) {
    return std::nullopt;
  }
}

// The file may be removed, as an empty manifest is, or replaced between its opening and its
// locking: then the lock is of a file that nobody sees any more.
void Manifest::open_locked() {
  using namespace std::chrono_literals;
  constexpr int kMostTries = 1000;  // then its file system does not number files steadily
  const auto start = std::chrono::steady_clock::now();
  for (int tries = 1;; ++tries) {
    descriptor_ = open(file_.c_str(), O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
    if (descriptor_ < 0)
      throw InputError("{}: cannot be written: {}", file_.string(), std::strerror(errno));
    struct stat status {};
    if (fstat(descriptor_, &status) == 0 && !S_ISREG(status.st_mode)) {
      close(descriptor_);
      throw InputError("{}: is a {}, expected a file", file_.string(), file_kind(status.st_mode));
    }
    const int locked = set_lock(descriptor_, LockedByte::run, shared_ ? F_RDLCK : F_WRLCK);
    if (locked == EAGAIN && shared_ && std::chrono::steady_clock::now() - start < 5s) {
      close(descriptor_);  // one of the other processes may be done, and puts it in order
      std::this_thread::sleep_for(20ms);
      tries = 0;
      continue;
    }
    if (locked == EAGAIN) {
      close(descriptor_);
      throw InputError("{}: another process is writing it", file_.string());
    }
    // Some network file systems have no locks: there the user alone must keep runs apart.
    if (locked != 0 && shared_) {
      close(descriptor_);
      throw InputError(
          "{}: cannot be locked ({}), and so not be written by several processes; "
          "--shard I/N gives each its own",
          file_.string(), std::strerror(locked));
    }
    numbered_steadily_ = is_at(descriptor_, file_);
    if (numbered_steadily_ || tries == kMostTries) return;
    close(descriptor_);
  }
}

Manifest::Manifest(fs::path file, bool resume, const std::set<std::string>* others)
    : file_(std::move(file)), shared_(others != nullptr) {
  open_locked();
  try {
    read(resume, others);
  } catch (...) {
    close_it();
    throw;
  }
}

Manifest::~Manifest() {
  close_it();
}

void Manifest::close_it() {
  const bool empty = lseek(descriptor_, 0, SEEK_END) == 0;
  if (empty && is_last() && is_at(descriptor_, file_)) unlink(file_.c_str());
  close(descriptor_);
}

// The own lock goes first: of two processes that end at the same time one sees itself as the last.
bool Manifest::is_last() {
  if (!shared_) return true;
  set_lock(descriptor_, LockedByte::run, F_UNLCK);
  return set_lock(descriptor_, LockedByte::run, F_WRLCK) == 0;
}

void Manifest::read(bool resume, const std::set<std::string>* others) {
  const LineLock alone(descriptor_, shared_);
  read_lines();
  if (resume || (order_.empty() && unreadable_ == 0 && !torn_at_)) return;
  if (has_results(others)) {
    throw InputError(
        "{}: the folder holds a run already; --resume goes on with it, another --output-dir begins "
        "a new one",
        file_.string());
  }
  torn_at_ = 0;
  records_.clear();
  order_.clear();
}

void Manifest::read_lines() {
  const std::string text = read_text_file(file_);
  std::size_t begin = 0;
  for (std::size_t end; (end = text.find('\n', begin)) != std::string::npos; begin = end + 1) {
    auto record = ManifestRecord::parse(text.substr(begin, end - begin));
    if (!record) {
      ++unreadable_;
      continue;
    }
    order_.push_back(record->id);
    records_[record->id] = std::move(*record);
  }
  if (begin < text.size()) torn_at_ = begin;
}

bool Manifest::has_results(const std::set<std::string>* others) const {
  if (unreadable_ > 0 || torn_at_) return true;  // who knows
  return std::ranges::any_of(records_, [&](const auto& entry) {
    const auto& [id, record] = entry;
    if (others != nullptr && others->contains(id)) return false;
    return record.ok || !record.files.empty();
  });
}

void Manifest::require_in_place() const {
  if (numbered_steadily_ ? is_at(descriptor_, file_) : fs::exists(file_)) return;
  const fs::path folder = file_.parent_path();
  const bool has_folder = folder.empty() || fs::is_directory(folder);
  throw WriteError("{}: was moved or removed while the batch was running; stopped",
                   (has_folder ? file_ : folder).string());
}

// With several processes, one of them may have been killed since.
void Manifest::cut_torn_line() {
  if (shared_) {
    torn_at_.reset();
    const off_t size = lseek(descriptor_, 0, SEEK_END);
    char last = '\n';
    if (size > 0 && pread(descriptor_, &last, 1, size - 1) == 1 && last != '\n')
      torn_at_ = read_text_file(file_).rfind('\n') + 1;  // 0 where there is no line at all
  }
  if (torn_at_ && ftruncate(descriptor_, static_cast<off_t>(*torn_at_)) != 0)
    throw WriteError("{}: write failed: {}", file_.string(), std::strerror(errno));
  torn_at_.reset();
}

const ManifestRecord* Manifest::find(const std::string& id) const {
  const auto found = records_.find(id);
  return found == records_.end() ? nullptr : &found->second;
}

void Manifest::append(std::span<const ManifestRecord> records) {
  require_in_place();
  std::string text;
  for (const ManifestRecord& record : records) text += record.line() + "\n";
  write_lines(text);
  for (const ManifestRecord& record : records) {
    order_.push_back(record.id);
    records_[record.id] = record;
  }
}

void Manifest::write_lines(std::string_view text) {
  const LineLock alone(descriptor_, shared_);
  cut_torn_line();
  for (std::size_t done = 0; done < text.size();) {
    const ssize_t bytes = write(descriptor_, text.data() + done, text.size() - done);
    if (bytes < 0 && errno == EINTR) continue;
    if (bytes <= 0) throw WriteError("{}: write failed: {}", file_.string(), std::strerror(errno));
    done += static_cast<std::size_t>(bytes);
  }
  if (fdatasync(descriptor_) != 0)
    throw WriteError("{}: write failed: {}", file_.string(), std::strerror(errno));
}

void Manifest::finish(const std::vector<std::string>& ids) {
  require_in_place();
  if (shared_) {
    if (!is_last()) return;
    records_.clear();
    order_.clear();
    unreadable_ = 0;
    torn_at_.reset();
    read_lines();
    // A process that was killed, or that is still to begin, leaves the rest to a later one.
    if (!std::ranges::all_of(ids, [&](const auto& id) { return records_.contains(id); })) return;
  }
  if (order_ == ids && unreadable_ == 0 && !torn_at_) return;
  AtomicFile whole(file_);
  for (const std::string& id : ids) whole.write(records_.at(id).line() + "\n");
  whole.commit();
  order_ = ids;
  torn_at_.reset();
}

std::optional<std::vector<ManifestRecord>> read_manifest(const fs::path& file) {
  if (std::error_code ignored; !fs::exists(file, ignored)) return std::nullopt;
  const std::string text = read_text_file(file);
  std::map<std::string, ManifestRecord> last;  // by id
  std::size_t line = 1;
  for (std::size_t begin = 0, end = 0; (end = text.find('\n', begin)) != std::string::npos;
       begin = end + 1, ++line) {
    auto record = ManifestRecord::parse(text.substr(begin, end - begin));
    if (!record) {
      throw InputError("{}:{}: is no record of an item; expected lines that `batch` wrote",
                       file.string(), line);
    }
    last.insert_or_assign(record->id, *std::move(record));
  }
  std::vector<ManifestRecord> records;
  for (auto& [id, record] : last) records.push_back(std::move(record));
  std::ranges::stable_sort(records, {}, &ManifestRecord::number);
  return records;
}

std::vector<std::string> manifests_of_other_shards(const fs::path& folder, std::size_t count) {
  static const std::regex kName("manifest(-[0-9]+-of-([0-9]+))?\\.jsonl");
  std::vector<std::string> names;
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(folder, ignored)) {
    const std::string name = entry.path().filename().string();
    std::smatch match;
    if (!std::regex_match(name, match, kName)) continue;
    const std::string its_count = match[2].matched ? match[2].str() : "1";
    if (its_count != std::to_string(count) && entry.file_size(ignored) > 0) names.push_back(name);
  }
  std::ranges::sort(names);
  return names;
}

}  // namespace diptych
