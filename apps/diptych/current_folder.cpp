#include "apps/diptych/current_folder.h"

#include <cerrno>

#include <fcntl.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace diptych {
namespace {

int deleted_folder = -1;  // nothing but this is handed from before main() to it

// Nothing but system calls here: libc's own constructor has not run.
void leave_deleted_folder(int /*argc*/, char** /*argv*/, char** /*environment*/) {
  char folder[4096];
  if (syscall(SYS_getcwd, folder, sizeof(folder)) >= 0 || errno != ENOENT) return;
  const long opened = syscall(SYS_openat, AT_FDCWD, ".", O_PATH | O_DIRECTORY | O_CLOEXEC, 0);
  if (opened >= 0 && syscall(SYS_chdir, "/") == 0) deleted_folder = static_cast<int>(opened);
}

[[gnu::section(".preinit_array"),
  gnu::used]] void (*const kBeforeLibraries)(int, char**, char**) = leave_deleted_folder;

}  // namespace

void return_to_deleted_folder() {
  if (deleted_folder < 0) return;
  [[maybe_unused]] const int failed = fchdir(deleted_folder);
  close(deleted_folder);
}

}  // namespace diptych
