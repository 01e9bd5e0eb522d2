// After huggingface/transformers 4.57, models/clip/image_processing_clip.py and
// image_transforms.py (get_resize_output_image_size, center_crop, rescale, normalize).
#include "lib/media/clip_image.h"

#include <algorithm>

#include "lib/base/error.h"
#include "lib/base/json_file.h"
#include "lib/base/json_numbers.h"
#include "lib/media/resize.h"

namespace diptych {
namespace {

using Json = nlohmann::json;
using Path = std::filesystem::path;

constexpr std::int64_t kMostSide = 16384;

bool read_flag(const Json& json, const char* key, const Path& path) {
  const auto found = json.find(key);
  if (found == json.end() || found->is_null()) return true;
  if (!found->is_boolean()) {
    throw InputError("{}: {}: found {}, expected true or false", path.string(), key,
                     shown_json(*found));
  }
  return found->get<bool>();
}

std::int64_t read_side(const Json& json, const char* key, const Path& path) {
  std::int64_t side = 0;
  require_numbers(json, {key}, path);
  read_number(json, key, side, std::int64_t{1}, kMostSide, path);
  return side;
}

// A size as its files have it: a number, or an object of sides.
Json size_of(const Json& json, const char* key, const Path& path) {
  const auto found = json.find(key);
  if (found == json.end() || found->is_null()) return Json();
  if (found->is_object() || found->is_number_integer()) return *found;
  throw InputError("{}: {}: found {}, expected an object of sides", path.string(), key,
                   shown_json(*found));
}

void read_size(const Json& json, ClipImageProcessor& into, const Path& path) {
  Json size = size_of(json, "size", path);
  if (size.is_null()) return;
  if (size.is_number()) size = Json{{"shortest_edge", size}};
  if (size.contains("shortest_edge")) {
    into.shortest_edge = read_side(size, "shortest_edge", path);
  } else {
    into.exact_size = {{read_side(size, "height", path), read_side(size, "width", path)}};
  }
}

void read_crop(const Json& json, ClipImageProcessor& into, const Path& path) {
  Json crop = size_of(json, "crop_size", path);
  if (!read_flag(json, "do_center_crop", path)) {
    into.crop_size.reset();
  } else if (!crop.is_null()) {
    if (crop.is_number()) crop = Json{{"height", crop}, {"width", crop}};
    into.crop_size = {{read_side(crop, "height", path), read_side(crop, "width", path)}};
  }
}

void read_channels(const Json& json, const char* key, std::array<double, 3>& values,
                   const Path& path) {
  const auto found = json.find(key);
  if (found == json.end() || found->is_null()) return;
  const auto is_number = [](const Json& value) { return value.is_number(); };
  if (!found->is_array() || found->size() != 3 || !std::ranges::all_of(*found, is_number)) {
    throw InputError("{}: {}: found {}, expected three numbers", path.string(), key,
                     shown_json(*found));
  }
  for (std::size_t i = 0; i < 3; ++i) values[i] = (*found)[i].get<double>();
}

void read_normalisation(const Json& json, ClipImageProcessor& into, const Path& path) {
  read_number(json, "rescale_factor", into.rescale_factor, 0.0, 1.0, path);
  if (!read_flag(json, "do_rescale", path)) into.rescale_factor = 1;
  read_channels(json, "image_mean", into.image_mean, path);
  read_channels(json, "image_std", into.image_std, path);
  if (!read_flag(json, "do_normalize", path)) {
    into.image_mean = {0, 0, 0};
    into.image_std = {1, 1, 1};
  }
  if (std::ranges::any_of(into.image_std, [](double std) { return !(std > 0); }))
    throw InputError("{}: image_std: expected numbers above 0", path.string());
}

// [height, width, 3] -> the centre, of that size.
Tensor centre_of(const Tensor& image, const std::array<std::int64_t, 2>& size) {
  // As torchvision, and where the picture is smaller, what is added before it: half, rounded up.
  Tensor cut = image;
  for (std::int64_t axis = 0; axis < 2; ++axis) {
    const std::int64_t wanted = size[static_cast<std::size_t>(axis)], has = cut.size(axis);
    if (has >= wanted) {
      cut = cut.narrow(axis, (has - wanted) / 2, wanted);
      continue;
    }
    const std::int64_t before = (wanted - has + 1) / 2, after = wanted - has - before;
    cut = axis == 0 ? at::constant_pad_nd(cut, {0, 0, 0, 0, before, after})
                    : at::constant_pad_nd(cut, {0, 0, before, after});
  }
  return cut;
}

}  // namespace

ClipImageProcessor ClipImageProcessor::load(const Path& path) {
  const Json json = read_json_object(path);
  ClipImageProcessor processor;
  processor.do_resize = read_flag(json, "do_resize", path);
  constexpr std::int64_t kBicubic = 3;
  std::int64_t filter = kBicubic;
  read_number(json, "resample", filter, std::int64_t{0}, std::int64_t{5}, path);
  if (filter != kBicubic) {
    throw InputError("{}: resample: found {}, expected {} (bicubic)", path.string(), filter,
                     kBicubic);
  }
  read_size(json, processor, path);
  read_crop(json, processor, path);
  read_normalisation(json, processor, path);
  return processor;
}

Tensor ClipImageProcessor::pixels(const Tensor& image) const {
  TORCH_CHECK(image.dim() == 3 && image.size(2) == 3 && image.scalar_type() == at::kByte,
              "[clip_image] expected uint8 [height, width, 3], got ", image.scalar_type(), " ",
              image.sizes());
  Tensor picture = image;
  if (do_resize && exact_size) {
    picture = resize_bicubic(image, exact_size->at(0), exact_size->at(1));
  } else if (do_resize) {
    const std::int64_t height = image.size(0), width = image.size(1),
                       shortest = std::min(height, width), edge = shortest_edge;
    picture = resize_bicubic(image, edge * height / shortest, edge * width / shortest);
  }
  if (crop_size) picture = centre_of(picture, *crop_size);
  const auto of_channels = [](const std::array<double, 3>& values) {
    return at::tensor(at::ArrayRef<double>(values), at::kDouble).to(at::kFloat);
  };
  const Tensor scaled = (picture.to(at::kDouble) * rescale_factor).to(at::kFloat);
  const Tensor normed = (scaled - of_channels(image_mean)) / of_channels(image_std);
  return normed.permute({2, 0, 1}).unsqueeze(0).contiguous();
}

}  // namespace diptych
