#include "apps/diptych/compare/files.h"

#include "lib/base/error.h"
#include "lib/base/folder.h"
#include "lib/base/interrupt.h"
#include "lib/media/file_bytes.h"
#include "lib/media/image_read.h"
#include "lib/media/video/clip_read.h"

namespace diptych {

namespace fs = std::filesystem;

CompareKind kind_of(const fs::path& path) {
  if (!fs::exists(path)) throw InputError("{}: {}", path.string(), why_missing(path, "not found"));
  if (path.extension() == ".safetensors" && !fs::is_directory(path)) return CompareKind::trace;
  if (is_clip(path)) return CompareKind::clip;
  if (fs::is_directory(path)) return CompareKind::folder;
  if (format_of_name(path) || picture_format(read_file_bytes(path))) return CompareKind::picture;
  throw InputError("{}: expected a picture ({}), a clip, a .safetensors or a folder", path.string(),
                   readable_pictures());
}

CompareKind common_kind(const fs::path& actual, const fs::path& expected) {
  const CompareKind one = kind_of(actual), other = kind_of(expected);
  if (one == other) return one;
  const auto are = [&](CompareKind first, CompareKind second) {
    return one == first && other == second;
  };
  if (are(CompareKind::clip, CompareKind::folder) || are(CompareKind::folder, CompareKind::clip))
    return CompareKind::clip;
  throw InputError(
      "{} and {}: are of different kinds; expected two pictures, two clips, two traces or two "
      "folders",
      actual.string(), expected.string());
}

CompareReport compare_files(const fs::path& actual, const fs::path& expected, CompareKind kind,
                            const CompareOptions& options) {
  check_interrupted();
  switch (kind) {
    case CompareKind::trace:
      return compare_trace_files(actual, expected, options);
    case CompareKind::clip:
      return compare_clips(actual, expected, options);
    default:
      return compare_pictures(actual, expected, options);
  }
}

}  // namespace diptych
