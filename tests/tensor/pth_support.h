// Files of torch.save put together by hand: a zip writer that can lie, and pickles.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <fmt/format.h>

#include "tests/tensor/support.h"

namespace diptych::pth {

inline std::string number(std::uint64_t value, int bytes) {
  std::string text;
  for (int i = 0; i < bytes; ++i, value >>= 8) text += static_cast<char>(value & 0xFF);
  return text;
}

struct Record {
  std::string name, data;
  std::uint16_t method = 0, flags = 0;
  std::uint32_t extra_size = 0;  // what the directory adds to the uncompressed size
  bool zip64 = false;            // sizes and place in a zip64 field, as for 4 GiB and more
};

// As zip archives have it.
inline std::uint32_t crc32(std::string_view bytes) {
  std::uint32_t crc = 0xFFFFFFFF;
  for (const char byte : bytes) {
    crc ^= static_cast<unsigned char>(byte);
    for (int bit = 0; bit < 8; ++bit) crc = crc >> 1U ^ ((crc & 1U) != 0 ? 0xEDB88320U : 0U);
  }
  return ~crc;
}

// With a zip64 end as torch.save writes, or the short one. A version, without which libtorch reads
// no archive, is added where none of the records is one.
inline std::string zip(std::vector<Record> records, bool zip64_end = false) {
  const auto is_version = [](const Record& record) { return record.name.ends_with("/version"); };
  if (!records.empty() && std::ranges::none_of(records, is_version)) {
    const std::string& first = records.front().name;
    records.push_back({first.substr(0, first.find('/')) + "/version", "3\n"});
  }
  std::string file, directory;
  for (const Record& record : records) {
    const std::uint64_t at = file.size(), size = record.data.size();
    const std::string crc = number(crc32(record.data), 4);
    const std::string short_size = number(record.zip64 ? 0xFFFFFFFF : size, 4);
    file += "PK\3\4" + number(45, 2) + number(record.flags, 2) + number(record.method, 2) +
            number(0, 4) + crc + short_size + short_size + number(record.name.size(), 2) +
            number(3, 2) + record.name + "pad" + record.data;
    const std::string extra = record.zip64 ? number(0x4242, 2) + number(1, 2) + "x" + number(1, 2) +
                                                 number(24, 2) + number(size, 8) + number(size, 8) +
                                                 number(at, 8)
                                           : "";
    directory += "PK\1\2" + number(45, 2) + number(45, 2) + number(record.flags, 2) +
                 number(record.method, 2) + number(0, 4) + crc + short_size +
                 number(record.zip64 ? 0xFFFFFFFF : size + record.extra_size, 4) +
                 number(record.name.size(), 2) + number(extra.size(), 2) + number(0, 10) +
                 number(record.zip64 ? 0xFFFFFFFF : at, 4) + record.name + extra;
  }
  const std::uint64_t begin = file.size(), count = records.size();
  file += directory;
  if (zip64_end) {
    const std::uint64_t end = file.size();
    file += "PK\6\6" + number(44, 8) + number(45, 2) + number(45, 2) + number(0, 8) +
            number(count, 8) + number(count, 8) + number(directory.size(), 8) + number(begin, 8);
    file += "PK\6\7" + number(0, 4) + number(end, 8) + number(1, 4);
    return file + "PK\5\6" + number(0, 4) + std::string(12, '\xFF') + number(0, 2);
  }
  return file + "PK\5\6" + number(0, 4) + number(count, 2) + number(count, 2) +
         number(directory.size(), 4) + number(begin, 4) + number(0, 2);
}

inline std::string text(std::string_view value) {
  return "X" + number(value.size(), 4) + std::string(value);
}

inline std::string integer(std::int64_t value) {
  return "\x8a\x08" + number(static_cast<std::uint64_t>(value), 8);
}

inline std::string tuple(const std::vector<std::int64_t>& values) {
  std::string pickle = "(";
  for (const std::int64_t value : values) pickle += integer(value);
  return pickle + "t";
}

struct Part {
  std::string storage = "0", type = "FloatStorage";
  std::int64_t elements = 6, offset = 0;
  std::vector<std::int64_t> shape = {2, 3}, strides = {3, 1};
};

inline std::string tensor(const Part& part = {}) {
  return fmt::format(
             "ctorch._utils\n_rebuild_tensor_v2\n(({}ctorch\n{}\n{}{}{}tQ{}{}{}\x89",  // NOLINT
             text("storage"), part.type, text(part.storage), text("cpu"), integer(part.elements),
             integer(part.offset), tuple(part.shape), tuple(part.strides)) +
         "ccollections\nOrderedDict\n)RtR";
}

// "}" or an OrderedDict, and what stands between the mark and SETITEMS.
inline std::string dict(std::string_view items) {
  return "\x80\x02}(" + std::string(items) + "u.";
}

inline const std::string kSixFloats(24, '\x3f');

inline std::string file(std::string_view pickle,
                        std::vector<Record> more = {{"a/data/0", kSixFloats}}) {
  more.insert(more.begin(), {"a/data.pkl", std::string(pickle)});
  return zip(more);
}

}  // namespace diptych::pth
