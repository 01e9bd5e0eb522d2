#include "lib/pipelines/inputs.h"

#include <algorithm>
#include <limits>

#include <fmt/ranges.h>

#include "lib/base/error.h"
#include "lib/media/image_read.h"
#include "lib/tensor/dtype.h"
#include "lib/tensor/safetensors.h"

namespace diptych {
namespace {

Tensor noise_in(const std::filesystem::path& path, std::span<const char* const> names,
                at::IntArrayRef shape) {
  const SafetensorsFile file = SafetensorsFile::open(path);
  const auto found =
      std::ranges::find_if(names, [&](const char* name) { return file.entries().contains(name); });
  if (found == names.end())
    throw InputError("{}: has no tensor '{}'", path.string(), fmt::join(names, "' or '"));
  const Tensor noise = file.view(*found);
  if (!noise.is_floating_point() || noise.sizes() != shape) {
    throw InputError("{}: {}: found {} [{}], expected F32 [{}]", path.string(), *found,
                     dtype_name(noise.scalar_type()), fmt::join(noise.sizes().vec(), ", "),
                     fmt::join(shape.vec(), ", "));
  }
  if (!noise.isfinite().all().item<bool>()) {
    throw InputError("{}: {}: holds NaN or infinity", path.string(), *found);
  }
  return noise.to(at::kFloat).clone();
}

}  // namespace

void check_counts(const RunConfig& config) {
  const std::int64_t count = config.sampling.batch_count;
  if (count == 1) return;
  if (config.answers())
    throw InputError(Setting::of("batch_count"),
                     SettingText{"one answer at a time, found ", Setting::of("task", config.task)});
  const auto last = static_cast<std::uint64_t>(count - 1);
  if (config.sampling.seed > std::numeric_limits<std::uint64_t>::max() - last) {
    throw InputError(Setting::of("seed"), "{} + {} does not fit in 64 bits", config.sampling.seed,
                     last);
  }
  const SettingText one = {"one result at a time, found ",
                           Setting::of("batch_count", fmt::format("{}", count))};
  if (!config.trace.empty()) throw InputError(Setting::of("trace"), one);
  if (!config.noise.empty()) throw InputError(Setting::of("noise"), one);
}

Tensor read_noise(const std::filesystem::path& path, std::span<const char* const> names,
                  at::IntArrayRef shape) {
  return about(Setting::of("noise"), [&] { return noise_in(path, names, shape); });
}

Tensor read_input(const std::filesystem::path& path) {
  return about(Setting::of("image"), [&] { return read_image(path); });
}

ImageSize read_input_size(const std::filesystem::path& path) {
  return about(Setting::of("image"), [&] { return read_image_size(path); });
}

}  // namespace diptych
