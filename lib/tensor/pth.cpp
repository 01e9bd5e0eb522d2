#include "lib/tensor/pth.h"

#include <algorithm>

#include "lib/base/error.h"
#include "lib/tensor/archive_records.h"
#include "lib/tensor/state_dict.h"
#include "lib/tensor/tensor_names.h"

namespace diptych {
namespace {

// An opened one.
struct Archive {
  std::string file;  // for messages
  std::map<std::string, ZipRecord, std::less<>> records;
};

constexpr std::string_view kPickle = "data.pkl";

void check_byte_order(const Archive& archive, std::span<const std::byte> bytes) {
  const auto found = archive.records.find("byteorder");
  if (found == archive.records.end()) return;  // before PyTorch 2.1
  const auto order = bytes.subspan(found->second.begin, found->second.size);
  const std::string_view text(reinterpret_cast<const char*>(order.data()), order.size());
  if (text != "little")
    throw InputError("{}: its byte order is {}, expected \"little\"", archive.file,
                     shown_name(text));
}

// As torch: the stride of a dimension of one element, and of a tensor without any, says nothing.
bool is_contiguous(const StoredView& view) {
  std::int64_t expected = 1;
  if (std::ranges::find(view.shape, 0) != view.shape.end()) return true;
  for (std::size_t i = view.shape.size(); i-- > 0;) {
    if (view.shape[i] == 1) continue;
    if (view.strides[i] != expected) return false;
    expected *= view.shape[i];
  }
  return true;
}

// Its bytes.
std::uint64_t check_view(const std::string& file, const std::string& shown,
                         const StoredView& view) {
  const std::string shape = shown_shape(view.shape), strides = shown_shape(view.strides);
  if (std::ranges::any_of(view.shape, [](std::int64_t size) { return size < 0; }) ||
      view.strides.size() != view.shape.size() || view.offset < 0 || view.storage_elements < 0) {
    throw InputError("{}: tensor {} has shape {}, strides {}, offset {} in a storage of {}", file,
                     shown, shape, strides, view.offset, view.storage_elements);
  }
  const auto bytes = contiguous_bytes(view.shape, view.dtype);
  if (!bytes) throw InputError("{}: shape {} of tensor {} overflows 63 bits", file, shape, shown);
  if (!is_contiguous(view)) {
    throw InputError(
        "{}: tensor {} of shape {} has the strides {}, expected contiguous ones; save "
        "it with .contiguous()",
        file, shown, shape, strides);
  }
  return *bytes;
}

TensorEntry entry_of(const Archive& archive, const std::string& name, const StoredView& view) {
  const std::string& file = archive.file;
  const std::string shown = shown_name(name);
  const std::uint64_t bytes = check_view(file, shown, view);
  const auto found = archive.records.find("data/" + view.storage);
  if (found == archive.records.end()) {
    throw InputError("{}: tensor {} is in storage {}, which the file lacks", file, shown,
                     shown_name(view.storage));
  }
  const ZipRecord& record = found->second;
  const auto element = static_cast<std::uint64_t>(c10::elementSize(view.dtype));
  const auto elements = static_cast<std::uint64_t>(view.storage_elements);
  if (record.size / element != elements || record.size % element != 0) {
    throw InputError("{}: storage {} of tensor {} holds {} bytes, expected {} elements of {}", file,
                     shown_name(view.storage), shown, record.size, elements, element);
  }
  const auto offset = static_cast<std::uint64_t>(view.offset);
  if (offset > elements || bytes > record.size - offset * element) {
    throw InputError("{}: tensor {} of shape {} reaches from element {} beyond its storage of {}",
                     file, shown, shown_shape(view.shape), offset, elements);
  }
  const std::uint64_t begin = record.begin + offset * element;
  return {view.dtype, view.shape, begin, begin + bytes};
}

}  // namespace

PthFile PthFile::open(const std::filesystem::path& path) {
  auto state = std::make_shared<State>(path);
  const auto bytes = state->map.bytes();
  const Archive archive{path.string(), archive_records(path, bytes)};
  const auto pickle = archive.records.find(kPickle);
  if (pickle == archive.records.end())
    throw InputError("{}: holds no {}: not an archive of torch.save", archive.file, kPickle);
  check_byte_order(archive, bytes);
  for (const auto& [name, view] :
       read_state_dict(path, bytes.subspan(pickle->second.begin, pickle->second.size)))
    state->entries.emplace(name, entry_of(archive, name, view));
  return PthFile(std::move(state));
}

}  // namespace diptych
