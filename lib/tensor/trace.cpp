#include "lib/tensor/trace.h"

#include <algorithm>

#include "lib/base/error.h"
#include "lib/tensor/safetensors.h"

namespace diptych {

TraceSink::TraceSink(std::vector<std::string> globs) : globs_(std::move(globs)) {}

bool TraceSink::wants(std::string_view name) const {
  return globs_.empty() ||
         std::ranges::any_of(globs_, [&](const auto& glob) { return glob_matches(glob, name); });
}

void TraceSink::record(std::string_view name, const Tensor& value) {
  if (!wants(name)) return;
  const bool fresh = index_.emplace(name, tensors_.size()).second;
  TORCH_CHECK(fresh, "[trace] ", name, " was recorded twice");
  at::ScalarType dtype = at::kLong;
  if (value.is_floating_point())
    dtype = value.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  if (value.scalar_type() == at::kByte || value.scalar_type() == at::kBool) dtype = at::kByte;
  // Always a copy: the caller may go on to overwrite what it recorded.
  const auto options = at::TensorOptions().device(at::kCPU).dtype(dtype);
  tensors_.emplace_back(
      name, value.to(options, /*non_blocking=*/false, /*copy=*/true, at::MemoryFormat::Contiguous));
}

void TraceSink::write(const std::filesystem::path& path) const {
  try {
    write_safetensors(path, tensors_);
  } catch (const InputError& error) {  // before the run it could be written
    throw WriteError("{}", error.what());
  }
}

// On a mismatch go back to the last `*` and let it take one more character.
bool glob_matches(std::string_view glob, std::string_view text) {
  std::size_t g = 0, t = 0, star = std::string_view::npos, star_text = 0;
  while (t < text.size()) {
    if (g < glob.size() && glob[g] == '*') {
      star = g++;
      star_text = t;
    } else if (g < glob.size() && (glob[g] == '?' || glob[g] == text[t])) {
      ++g;
      ++t;
    } else if (star != std::string_view::npos) {
      g = star + 1;
      t = ++star_text;
    } else {
      return false;
    }
  }
  return glob.substr(g).find_first_not_of('*') == std::string_view::npos;
}

}  // namespace diptych
