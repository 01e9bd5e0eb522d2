// Opens the GPU ahead of everything else, where `generate` is going to use one. Libtorch's
// constructors are most of a start, and run one after the other on the first thread. The driver
// needs nothing of them to make its context, so a thread of its own does that meanwhile; the CUDA
// runtime finds it there later. If anything is missing or unclear, nothing is done: the device is
// then opened where it is first used (lib/runtime/gpu_cuda.cpp).
//
// All of this runs before the constructors of libstdc++: it may use the C library alone.
#include <cstdint>
#include <cstring>
#include <initializer_list>

#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <unistd.h>

namespace {

// The driver's own interface (cuda.h): 0 is success, a device is an int.
using Init = int (*)(unsigned flags);
using GetDevice = int (*)(int* device, int ordinal);
using GetAttribute = int (*)(int* value, int attribute, int device);
using RetainContext = int (*)(void** context, int device);
constexpr int kMajorCapability = 75;  // CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR
constexpr int kLeastMajor = 8;        // resolve_device() takes no older one

template <typename Function>
Function find(void* library, const char* name) {
  return reinterpret_cast<Function>(dlsym(library, name));
}

void* make_context(void* argument) {
  const auto ordinal = static_cast<int>(reinterpret_cast<std::intptr_t>(argument));
  void* const driver = dlopen("libcuda.so.1", RTLD_NOW);
  if (driver == nullptr) return nullptr;
  const auto init = find<Init>(driver, "cuInit");
  const auto get_device = find<GetDevice>(driver, "cuDeviceGet");
  const auto get_attribute = find<GetAttribute>(driver, "cuDeviceGetAttribute");
  const auto retain = find<RetainContext>(driver, "cuDevicePrimaryCtxRetain");
  if (init == nullptr || get_device == nullptr || get_attribute == nullptr || retain == nullptr)
    return nullptr;
  int device = 0, major = 0;
  void* context = nullptr;
  if (init(0) != 0 || get_device(&device, ordinal) != 0 ||
      get_attribute(&major, kMajorCapability, device) != 0 || major < kLeastMajor)
    return nullptr;
  retain(&context, device);  // never released: the process uses it to its end
  return nullptr;
}

bool is_one_of(const char* text, const char* a, const char* b) {
  return std::strcmp(text, a) == 0 || std::strcmp(text, b) == 0;
}

// Whether a stage config may name a device, itself or by what it inherits from.
bool may_name_device(const char* path) {
  static char text[1 << 16];  // longer ones may
  const int file = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (file < 0) return true;
  const ssize_t bytes = read(file, text, sizeof text);
  close(file);
  if (bytes < 0 || bytes == static_cast<ssize_t>(sizeof text)) return true;
  text[bytes] = '\0';
  return std::strstr(text, "device:") != nullptr || std::strstr(text, "devices:") != nullptr ||
         std::strstr(text, "base_config:") != nullptr;
}

// "", "auto", "cuda", "gpu" -> 0, "cuda:3" -> 3; -1: not a GPU, or something else.
int ordinal_of(const char* device) {
  if (*device == '\0' || is_one_of(device, "auto", "cuda") || std::strcmp(device, "gpu") == 0)
    return 0;
  for (const char* prefix : {"cuda:", "gpu:"}) {
    const std::size_t length = std::strlen(prefix);
    if (std::strncmp(device, prefix, length) != 0) continue;
    const char digit = device[length];
    if (digit >= '0' && digit <= '9' && device[length + 1] == '\0') return digit - '0';
  }
  return -1;
}

// What stands behind "NAME=" or "--name="; null: it is another one.
const char* value_of(const char* text, const char* name) {
  const std::size_t length = std::strlen(name);
  return std::strncmp(text, name, length) == 0 ? text + length : nullptr;
}

// The GPU that `generate` will use, as far as that is plain from here; -1: none, or not plain.
// getenv() finds nothing yet.
int chosen_gpu(int argc, char** argv, char** environment) {
  const char *device = nullptr, *config = nullptr, *verb = nullptr;
  for (char** variable = environment; *variable != nullptr; ++variable) {
    if (const char* const value = value_of(*variable, "DIPTYCH_DEVICE=")) device = value;
    if (const char* const value = value_of(*variable, "DIPTYCH_CONFIG=")) config = value;
    // Perhaps one of several processes, each with a GPU of its own (lib/batch/shards.cpp). A Slurm
    // job script is no step.
    for (const char* rank : {"RANK=", "OMPI_COMM_WORLD_RANK=", "PMI_RANK=", "SLURM_STEP_ID="}) {
      if (value_of(*variable, rank) != nullptr) return -1;
    }
  }
  for (int i = 1; i < argc; ++i) {
    const char* const word = argv[i];
    const char* const next = i + 1 < argc ? argv[i + 1] : "";
    if (verb == nullptr && *word != '-') verb = word;
    if (is_one_of(word, "-h", "--help") || is_one_of(word, "--print-config", "--check-config") ||
        std::strncmp(word, "--set", 5) == 0)
      return -1;
    if (std::strcmp(word, "--device") == 0) device = next;
    if (const char* const value = value_of(word, "--device=")) device = value;
    if (is_one_of(word, "-c", "--config")) config = next;
    if (const char* const value = value_of(word, "--config=")) config = value;
    if (std::strncmp(word, "-c", 2) == 0 && word[2] != '\0') config = word + 2;
  }
  if (verb == nullptr || std::strcmp(verb, "generate") != 0) return -1;
  const bool named = device != nullptr && *device != '\0';
  if (!named && config != nullptr && *config != '\0' && may_name_device(config)) return -1;
  return ordinal_of(named ? device : "");
}

void open_device_ahead(int argc, char** argv, char** environment) {
  const std::intptr_t ordinal = chosen_gpu(argc, argv, environment);
  if (ordinal < 0) return;
  pthread_t thread;
  if (pthread_create(&thread, nullptr, make_context, reinterpret_cast<void*>(ordinal)) == 0)
    pthread_detach(thread);
}

// The dynamic linker calls this before any library's constructors.
__attribute__((section(".preinit_array"), used)) void (*const kAhead)(int, char**,
                                                                      char**) = open_device_ahead;

}  // namespace
