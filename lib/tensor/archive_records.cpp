#include "lib/tensor/archive_records.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <string_view>

#include <caffe2/serialize/inline_container.h>
#include <caffe2/serialize/read_adapter_interface.h>

#include "lib/base/error.h"
#include "lib/tensor/tensor_names.h"

namespace diptych {
namespace {

class Bytes final : public caffe2::serialize::ReadAdapterInterface {
 public:
  explicit Bytes(std::span<const std::byte> file) : file_(file) {}

  std::size_t size() const override { return file_.size(); }

  std::size_t read(std::uint64_t at, void* buffer, std::size_t size, const char*) const override {
    if (at >= file_.size()) return 0;
    const auto taken = file_.subspan(at, std::min<std::uint64_t>(size, file_.size() - at));
    std::memcpy(buffer, taken.data(), taken.size());
    return taken.size();
  }

 private:
  std::span<const std::byte> file_;
};

// The first sentence: others advise programmers.
std::string_view fact_of(std::string_view message) {
  return message.substr(0, std::min(message.find(". "), message.find('\n')));
}

[[noreturn]] void refuse(const std::filesystem::path& path, std::string_view message) {
  throw InputError(
      "{}: is not a zip archive, as torch.save writes since PyTorch 1.6, or is damaged: {}",
      path.string(), fact_of(message));
}

// PKWARE APPNOTE.TXT 6.3.9, 4.3.7: a record's own header tells of compression, which libtorch's
// reader undoes where it reads. Here records are read in place.
void check_stored(const std::filesystem::path& path, std::span<const std::byte> file,
                  const std::string& name, std::uint64_t header) {
  constexpr std::uint64_t kHeaderBytes = 30, kMethod = 8;
  if (header > file.size() || file.size() - header < kHeaderBytes)
    throw InputError("{}: the record {} has no header", path.string(), shown_name(name));
  const auto at = [&](std::uint64_t place) {
    return std::to_integer<unsigned>(file[header + place]);
  };
  if (const unsigned method = at(kMethod) | at(kMethod + 1) << 8U; method != 0)
    throw InputError("{}: the record {} is compressed (method {}), expected a stored one",
                     path.string(), shown_name(name), method);
}

}  // namespace

std::map<std::string, ArchiveRecord, std::less<>> archive_records(const std::filesystem::path& path,
                                                                  std::span<const std::byte> file) {
  std::map<std::string, ArchiveRecord, std::less<>> records;
  try {
    caffe2::serialize::PyTorchStreamReader reader(std::make_shared<Bytes>(file));
    for (const std::string& name : reader.getAllRecords()) {
      const ArchiveRecord record{reader.getRecordOffset(name), reader.getRecordSize(name)};
      check_stored(path, file, name, reader.getRecordHeaderOffset(name));
      if (record.begin > file.size() || record.size > file.size() - record.begin) {
        throw InputError("{}: the record {} has {} bytes from byte {} on, but the file has {}",
                         path.string(), shown_name(name), record.size, record.begin, file.size());
      }
      if (!records.try_emplace(name, record).second)
        throw InputError("{}: the record {} appears twice", path.string(), shown_name(name));
    }
  } catch (const InputError&) {
    throw;
  } catch (const c10::Error& error) {
    refuse(path, error.what_without_backtrace());
  } catch (const std::exception& error) {  // a version that is no number
    refuse(path, error.what());
  }
  return records;
}

}  // namespace diptych
