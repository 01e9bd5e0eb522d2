#include "lib/media/video/libav_library.h"

#include <dlfcn.h>

#include "lib/base/error.h"

namespace diptych {
namespace {

constexpr const char* kFile = "diptych_libav.so";  // found by the program's run path

struct Loaded {
  const libav::Module* module = nullptr;
  std::string problem;
};

Loaded load() {
  void* library = dlopen(kFile, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return {nullptr, dlerror()};
  const auto entry =
      reinterpret_cast<decltype(&diptych_libav_module)>(dlsym(library, "diptych_libav_module"));
  if (entry == nullptr) return {nullptr, dlerror()};
  const libav::Module* module = entry();
  if (std::string_view(module->version) != DIPTYCH_VERSION)
    return {nullptr, fmt::format("{} is of diptych {}", kFile, module->version)};
  return {module, ""};
}

// Once: it stays loaded, as its threads may.
const Loaded& loaded() {
  static const Loaded kLoaded = load();
  return kLoaded;
}

}  // namespace

const libav::Module& libav_module(std::string_view name) {
  if (loaded().module == nullptr)
    throw InputError("{}: needs libav, which cannot be loaded: {}", name, loaded().problem);
  return *loaded().module;
}

std::string why_no_libav() {
  return loaded().problem;
}

}  // namespace diptych
