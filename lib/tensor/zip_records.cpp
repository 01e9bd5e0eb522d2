#include "lib/tensor/zip_records.h"

#include <algorithm>
#include <optional>
#include <string_view>

#include "lib/base/error.h"
#include "lib/tensor/tensor_names.h"

namespace diptych {
namespace {

constexpr std::uint64_t kLocalHeaderBytes = 30, kEntryBytes = 46, kEndBytes = 22,
                        kZip64LocatorBytes = 20, kZip64EndBytes = 56;
constexpr std::uint32_t kNone32 = 0xFFFFFFFF;  // the value stands in the zip64 field
constexpr std::uint64_t kMaxCommentBytes = 0xFFFF;

// The directory at the end of the archive.
struct Directory {
  std::uint64_t begin = 0, size = 0, entries = 0;
};

struct Entry {
  std::string_view name;
  std::uint64_t compressed = 0, size = 0, local_header = 0;
  std::uint64_t flags = 0, method = 0;
};

class Reader {
 public:
  Reader(const std::filesystem::path& path, std::span<const std::byte> file)
      : path_(path), file_(file) {}

  std::map<std::string, ZipRecord, std::less<>> read() const {
    const Directory directory = find_directory();
    std::map<std::string, ZipRecord, std::less<>> records;
    std::uint64_t position = directory.begin;
    for (std::uint64_t i = 0; i < directory.entries; ++i) {
      const Entry entry = read_entry(position, directory.begin + directory.size);
      const ZipRecord record = locate(entry, directory.begin);
      if (!records.try_emplace(std::string(entry.name), record).second)
        fail("the record {} appears twice", shown_name(entry.name));
    }
    if (position != directory.begin + directory.size)
      fail("the directory of the zip archive holds more than its {} entries", directory.entries);
    return records;
  }

 private:
  template <typename... Args>
  [[noreturn]] void fail(fmt::format_string<Args...> format, Args&&... args) const {
    throw InputError("{}: {}", path_.string(), fmt::format(format, std::forward<Args>(args)...));
  }

  // A little-endian number. The caller has checked that it lies within the file.
  template <typename T>
  T number(std::uint64_t position) const {
    std::uint64_t value = 0;
    for (std::size_t i = 0; i < sizeof(T); ++i)
      value |= std::to_integer<std::uint64_t>(file_[position + i]) << (8 * i);
    return static_cast<T>(value);
  }

  bool has_signature(std::uint64_t position, std::string_view signature) const {
    return text(position, signature.size()) == signature;
  }

  std::string_view text(std::uint64_t position, std::uint64_t size) const {
    return {reinterpret_cast<const char*>(file_.data()) + position, size};
  }

  // Of the end record, which a comment of up to 65535 bytes may follow.
  std::uint64_t find_end() const {
    if (file_.size() >= kEndBytes) {
      const std::uint64_t last = file_.size() - kEndBytes;
      for (std::uint64_t comment = 0; comment <= std::min(last, kMaxCommentBytes); ++comment) {
        if (has_signature(last - comment, "PK\5\6") &&
            number<std::uint16_t>(last - comment + 20) == comment)
          return last - comment;
      }
    }
    fail("is not a zip archive, as torch.save writes since PyTorch 1.6, or is truncated");
  }

  Directory find_directory() const {
    const std::uint64_t end = find_end();
    const auto zip64 = find_zip64_end(end);
    Directory directory;
    if (zip64) {
      directory = {number<std::uint64_t>(*zip64 + 48), number<std::uint64_t>(*zip64 + 40),
                   number<std::uint64_t>(*zip64 + 32)};
    } else {
      directory = {number<std::uint32_t>(end + 16), number<std::uint32_t>(end + 12),
                   number<std::uint16_t>(end + 10)};
    }
    const std::uint64_t limit = zip64.value_or(end);
    if (directory.begin > limit || directory.size > limit - directory.begin) {
      fail(
          "the directory of the zip archive is said to lie at byte {} with {} bytes, but must end "
          "by byte {}: truncated?",
          directory.begin, directory.size, limit);
    }
    return directory;
  }

  std::optional<std::uint64_t> find_zip64_end(std::uint64_t end) const {
    if (end < kZip64LocatorBytes + kZip64EndBytes) return std::nullopt;
    const std::uint64_t locator = end - kZip64LocatorBytes;
    if (!has_signature(locator, "PK\6\7")) return std::nullopt;
    const auto position = number<std::uint64_t>(locator + 8);
    if (position > locator - kZip64EndBytes || !has_signature(position, "PK\6\6"))
      fail("the zip archive has no zip64 end record at byte {}: truncated?", position);
    return position;
  }

  // Moves `position` to the next one. `end`: of the directory.
  Entry read_entry(std::uint64_t& position, std::uint64_t end) const {
    const std::uint64_t at = position;
    if (end - at < kEntryBytes || !has_signature(at, "PK\1\2"))
      fail("the directory of the zip archive has no entry at byte {}", at);
    const std::uint64_t name = number<std::uint16_t>(at + 28),
                        extra = number<std::uint16_t>(at + 30),
                        comment = number<std::uint16_t>(at + 32);
    if (end - at - kEntryBytes < name + extra + comment)
      fail("the directory of the zip archive ends within its entry at byte {}", at);
    Entry entry{text(at + kEntryBytes, name),   number<std::uint32_t>(at + 20),
                number<std::uint32_t>(at + 24), number<std::uint32_t>(at + 42),
                number<std::uint16_t>(at + 8),  number<std::uint16_t>(at + 10)};
    read_zip64_field(entry, at + kEntryBytes + name, extra);
    position = at + kEntryBytes + name + extra + comment;
    return entry;
  }

  // Of the extra fields [position, position + size): values that do not fit 32 bits, in this order.
  void read_zip64_field(Entry& entry, std::uint64_t position, std::uint64_t size) const {
    constexpr std::uint64_t kFieldHeader = 4, kValue = sizeof(std::uint64_t);
    const std::uint64_t end = position + size;
    while (end - position >= kFieldHeader) {
      const auto id = number<std::uint16_t>(position);
      const std::uint64_t bytes = number<std::uint16_t>(position + 2);
      position += kFieldHeader;
      if (bytes > end - position) break;
      const std::uint64_t next = position + bytes;
      if (id == 1) {
        for (std::uint64_t* value : {&entry.size, &entry.compressed, &entry.local_header}) {
          if (*value != kNone32 || next - position < kValue) continue;
          *value = number<std::uint64_t>(position);
          position += kValue;
        }
        return;
      }
      position = next;
    }
  }

  // `limit`: where the directory begins, behind all records.
  ZipRecord locate(const Entry& entry, std::uint64_t limit) const {
    const std::string shown = shown_name(entry.name);
    if ((entry.flags & 1U) != 0) fail("the record {} is encrypted", shown);
    if (entry.method != 0 || entry.compressed != entry.size) {
      fail("the record {} is compressed (method {}, {} of {} bytes), expected a stored one", shown,
           entry.method, entry.compressed, entry.size);
    }
    const std::uint64_t at = entry.local_header;
    if (limit < kLocalHeaderBytes || at > limit - kLocalHeaderBytes ||
        !has_signature(at, "PK\3\4")) {
      fail("the record {} is not at byte {}, where the directory has it: truncated?", shown, at);
    }
    const std::uint64_t name = number<std::uint16_t>(at + 26),
                        extra = number<std::uint16_t>(at + 28);
    const std::uint64_t begin = at + kLocalHeaderBytes + name + extra;
    if (begin > limit || text(at + kLocalHeaderBytes, name) != entry.name)
      fail("another record is at byte {}, where the directory has {}", at, shown);
    if (entry.size > limit - begin) {
      fail("the record {} has {} bytes from byte {} on, but must end by byte {}: truncated?", shown,
           entry.size, begin, limit);
    }
    return {begin, entry.size};
  }

  const std::filesystem::path& path_;
  std::span<const std::byte> file_;
};

}  // namespace

std::map<std::string, ZipRecord, std::less<>> zip_records(const std::filesystem::path& path,
                                                          std::span<const std::byte> file) {
  return Reader(path, file).read();
}

}  // namespace diptych
