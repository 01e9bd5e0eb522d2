#include <array>
#include <set>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "lib/base/atomic_file.h"
#include "lib/tensor/dtype.h"
#include "lib/tensor/safetensors.h"
#include "lib/tensor/tensor_names.h"

namespace diptych {
namespace {

// Spaces at its end make the data behind the length (8 bytes) and the header begin at a multiple
// of 8.
std::string header_text(std::span<const std::pair<std::string, Tensor>> tensors,
                        const std::map<std::string, std::string>& metadata) {
  std::string text = "{";
  if (!metadata.empty())
    text += fmt::format("\"__metadata__\":{}", nlohmann::json(metadata).dump());
  std::set<std::string_view> names = {"__metadata__"};
  std::uint64_t position = 0;
  for (const auto& [name, tensor] : tensors) {
    TORCH_CHECK(names.insert(name).second, "[safetensors] the name ", name, " is given twice");
    const std::uint64_t begin = position;
    position += tensor.nbytes();
    text +=
        fmt::format(R"({}{}:{{"dtype":"{}","shape":{},"data_offsets":[{},{}]}})",
                    text.size() > 1 ? "," : "", nlohmann::json(name).dump(),
                    dtype_name(tensor.scalar_type()), shown_shape(tensor.sizes()), begin, position);
  }
  text += "}";
  text.resize((text.size() + 7) / 8 * 8, ' ');
  return text;
}

}  // namespace

void write_safetensors(const std::filesystem::path& path,
                       std::span<const std::pair<std::string, Tensor>> tensors,
                       const std::map<std::string, std::string>& metadata) {
  const std::string header = header_text(tensors, metadata);
  AtomicFile file(path);
  std::array<char, 8> length;
  for (std::size_t i = 0; i < length.size(); ++i) {
    length[i] = static_cast<char>(header.size() >> (8 * i) & 0xFF);
  }
  file.write(length.data(), length.size());
  file.write(header);
  for (const auto& [name, tensor] : tensors) {  // one at a time on the host
    const Tensor host = tensor.to(at::kCPU).contiguous();
    file.write(host.const_data_ptr(), host.nbytes());
  }
  file.commit();
}

}  // namespace diptych
