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

// libtorch's message without the place in its source in front and the advice behind, on one line.
std::string fact_of(std::string_view message) {
  constexpr std::string_view kPlace = "] . ";
  constexpr std::size_t kMost = 200;
  if (message.starts_with("[enforce fail") && message.find(kPlace) != std::string_view::npos)
    message.remove_prefix(message.find(kPlace) + kPlace.size());
  message = message.substr(0, std::min({message.find(". "), message.find('\n'), kMost}));
  std::string shown;
  for (const char c : message) shown += c >= ' ' && c <= '~' ? c : '?';
  return shown;
}

}  // namespace

std::map<std::string, ZipRecord, std::less<>> archive_records(const std::filesystem::path& path,
                                                              std::span<const std::byte> file) {
  const auto checked = zip_records(path, file);
  const std::string first = checked.empty() ? "" : checked.begin()->first;
  const std::string folder = first.substr(0, first.find('/') + 1);
  std::map<std::string, ZipRecord, std::less<>> records;
  try {
    caffe2::serialize::PyTorchStreamReader reader(std::make_shared<Bytes>(file));
    for (const std::string& name : reader.getAllRecords()) {
      const ZipRecord record{reader.getRecordOffset(name), reader.getRecordSize(name)};
      // libtorch finds names whatever their case.
      const auto entry = checked.find(folder + name);
      if (entry == checked.end() || entry->second != record ||
          !records.try_emplace(name, record).second)
        throw InputError("{}: two records are called {}, but for their case", path.string(),
                         shown_name(name));
    }
  } catch (const c10::Error& error) {
    throw InputError("{}: is not an archive of torch.save: {}", path.string(),
                     fact_of(error.what_without_backtrace()));
  } catch (const std::logic_error&) {  // of std::stoull
    throw InputError("{}: is not an archive of torch.save: its version is no number",
                     path.string());
  }
  return records;
}

}  // namespace diptych
