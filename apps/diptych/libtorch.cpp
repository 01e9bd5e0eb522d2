#include "apps/diptych/libtorch.h"

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <string>
#include <system_error>
#include <vector>

#include <dlfcn.h>
#include <torch/version.h>

#include "lib/base/error.h"

namespace diptych {
namespace {

namespace fs = std::filesystem;

constexpr const char* kVariable = "LIBTORCH_ROOT";
constexpr const char* kLibrary = DIPTYCH_HAVE_CUDA != 0 ? "libtorch_cuda.so" : "libtorch_cpu.so";

// Of the wheel in this folder, such as "2.11.0+cu130"; "" where it does not say.
std::string version_of(const fs::path& folder) {
  std::ifstream file(folder / "version.py");
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  constexpr std::string_view kMark = "__version__ = '";
  const std::size_t at = text.find(kMark);
  if (at == std::string::npos) return "";
  const std::size_t begin = at + kMark.size();
  return text.substr(begin, text.find('\'', begin) - begin);
}

// What keeps this folder from being the program's libtorch; "" = nothing does.
std::string problem_of(const fs::path& folder) {
  std::error_code none;
  if (!fs::exists(folder / "lib" / kLibrary, none))
    return fmt::format("{}: holds no lib/{}", folder.string(), kLibrary);
  const std::string version = version_of(folder);
  if (version.empty() || version.substr(0, version.find('+')) == TORCH_VERSION) return "";
  return fmt::format("{}: is libtorch {}, expected {}", folder.string(), version, TORCH_VERSION);
}

// Where an installation may have it, the surest first.
std::vector<fs::path> places(const fs::path& prefix) {
  std::vector<fs::path> found;
  std::error_code none;
  for (const fs::path& python : fs::directory_iterator(prefix / "lib", none)) {
    if (!python.filename().string().starts_with("python3")) continue;
    for (const char* packages : {"site-packages", "dist-packages"})
      found.push_back(python / packages / "torch");
  }
  std::ranges::sort(found);
  found.insert(found.begin(), prefix / "lib" / "diptych" / "torch");
  std::erase_if(found, [](const fs::path& folder) {
    std::error_code error;
    return !fs::exists(folder, error);
  });
  return found;
}

fs::path choose(const fs::path& prefix) {
  std::string problem;
  for (const fs::path& folder : places(prefix)) {
    const std::string of_this = problem_of(folder);
    if (of_this.empty()) return folder;
    if (problem.empty()) problem = of_this;
  }
  if (!problem.empty()) throw RunError("{}", problem);
  throw RunError(
      "libtorch {} not found; expected the wheel torch=={} in the virtual environment of {}, or {} "
      "to "
      "name its folder",
      TORCH_VERSION, TORCH_VERSION, (prefix / "bin" / "diptych").string(), kVariable);
}

// libtorch's own, and those of the CUDA packages beside it that the program is linked to.
std::string search_path(const fs::path& folder) {
  std::string path = (folder / "lib").string();
  std::error_code none;
  for (const char* packages : {"nvidia/cu13/lib", "nvidia/cudnn/lib"}) {
    const fs::path beside = fs::canonical(folder, none).parent_path() / packages;
    if (fs::exists(beside, none)) path += ":" + beside.string();
  }
  return path;
}

// Ahead of what it has: the dynamic linker takes the first library of a name.
void prepend_to_search(std::string path) {
  const char* before = std::getenv("LD_LIBRARY_PATH");
  if (before != nullptr && *before != '\0') path += fmt::format(":{}", before);
  setenv("LD_LIBRARY_PATH", path.c_str(), 1);
}

// Whether this machine may have a GPU: its driver has a device file, or a library elsewhere (WSL).
bool has_driver() {
  std::error_code none;
  return fs::exists("/dev/nvidiactl", none) || dlopen("libcuda.so.1", RTLD_LAZY) != nullptr;
}

// Whether functions are looked for when they are called first.
bool binds_late() {
  const char* now = std::getenv("LD_BIND_NOW");
  return now == nullptr || *now == '\0';
}

}  // namespace

void leave_out_gpu(const fs::path& folder) {
  std::error_code none;
  if (fs::exists(folder, none) && binds_late() && !has_driver()) prepend_to_search(folder.string());
}

void find_libtorch(const fs::path& prefix) {
  const char* given = std::getenv(kVariable);
  fs::path folder;
  if (given != nullptr && *given != '\0') {
    folder = given;
    const std::string problem = problem_of(folder);
    if (!problem.empty()) throw RunError("{}: {}", kVariable, problem);
  } else if (!prefix.empty()) {
    folder = choose(prefix);
  } else {
    return;
  }
  prepend_to_search(search_path(folder));
}

}  // namespace diptych
