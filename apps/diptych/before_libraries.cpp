// What must be known before the libraries' constructors run, which take most of a start.
//
// How the CPU's threads wait for each other: libgomp's spin for milliseconds before they sleep,
// which is a loss wherever another process wants the core: beside one, a picture of the demo took
// two to ten times as long on two cores. libgomp reads this from the environment before main() and
// offers no call for it, so the program starts itself anew with it.
//
// Whether the current folder is there: oneMKL's constructor ends a program that has none with a
// message of its own.
#include <cerrno>
#include <cstring>

#include <alloca.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace {

constexpr char kSpins[] = "GOMP_SPINCOUNT=1000";

bool sets(const char* entry, const char* name) {
  const std::size_t length = std::strlen(name);
  return std::strncmp(entry, name, length) == 0 && entry[length] == '=';
}

// Nothing but system calls and plain C here: libc's own constructor has not run.
void need_a_folder(int /*argc*/, char** /*argv*/, char** /*environment*/) {
  char folder[4096];
  if (syscall(SYS_getcwd, folder, sizeof(folder)) >= 0 || errno != ENOENT) return;
  constexpr char kMessage[] =
      "diptych: the current folder: it was deleted; expected one that is there\n";
  [[maybe_unused]] const ssize_t told = write(STDERR_FILENO, kMessage, sizeof(kMessage) - 1);
  _exit(2);
}

void spin_briefly(int /*argc*/, char** argv, char** environment) {
  std::size_t count = 0;
  for (; environment[count] != nullptr; ++count) {
    // Also where it was set by this function: a program starts itself anew once.
    if (sets(environment[count], "GOMP_SPINCOUNT")) return;
    if (sets(environment[count], "OMP_WAIT_POLICY")) return;
  }
  char program[4096];
  const ssize_t length = readlink("/proc/self/exe", program, sizeof(program) - 1);
  if (length <= 0) return;
  program[length] = '\0';
  char** const extended = static_cast<char**>(alloca((count + 2) * sizeof(char*)));
  std::memcpy(extended, environment, count * sizeof(char*));
  extended[count] = const_cast<char*>(kSpins);
  extended[count + 1] = nullptr;
  execve(program, argv, extended);  // where that fails, it goes on as it is
}

[[gnu::section(".preinit_array"),
  gnu::used]] void (*const kBeforeLibraries[])(int, char**, char**) = {need_a_folder, spin_briefly};

}  // namespace
