// The build without libav.
#include "lib/base/error.h"
#include "lib/media/video/libav_library.h"

namespace diptych {

const libav::Module& libav_module(std::string_view name) {
  throw InputError("{}: needs libav, which this build is without", name);
}

std::string why_no_libav() {
  return "this build is without it";
}

}  // namespace diptych
