// diptych <verb> [options]: the command. What is always answered with the same text (answers.h) it
// says itself; for anything else it becomes the program, libexec/diptych, whose libraries take most
// of a start.
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <filesystem>
#include <string>

#include <fmt/format.h>
#include <unistd.h>

#include "apps/diptych/answers.h"
#include "apps/diptych/libtorch.h"
#include "apps/diptych/standard_streams.h"
#include "lib/base/error.h"
#include "lib/base/messages.h"
#include "lib/base/stdout.h"

namespace diptych {
namespace {

namespace fs = std::filesystem;

int print(const Answer& answer) {
  std::signal(SIGPIPE, SIG_IGN);  // becomes an error of the write
  errno = 0;
  const std::size_t written = std::fwrite(answer.text.data(), 1, answer.text.size(), stdout);
  if (written != answer.text.size()) stdout_failed(errno);
  flush_stdout();
  return 0;
}

// libgomp's threads spin for milliseconds before they sleep, which is a loss wherever another
// process wants the core: beside one, a picture of the demo took two to ten times as long on two
// cores. libgomp reads this when it is loaded, and offers no call for it.
void spin_briefly() {
  if (std::getenv("OMP_WAIT_POLICY") == nullptr) setenv("GOMP_SPINCOUNT", "1000", 0);
}

// Memory of glibc's in huge pages, where the system has them for who asks: fewer pages are to be
// cleared one by one, at a start and for every large tensor. glibc reads this when a process
// begins.
void use_huge_pages() {
  setenv("GLIBC_TUNABLES", "glibc.malloc.hugetlb=1", 0);
}

[[noreturn]] void become_program(char** argv) {
  const fs::path folder = fs::read_symlink("/proc/self/exe").parent_path();
  fs::path program = folder / "libexec" / "diptych";  // in a build folder
  if (!fs::exists(program)) {
    const fs::path prefix = folder.parent_path();
    program = prefix / "libexec" / "diptych";
    find_libtorch(prefix);
  } else {
    find_libtorch({});
  }
  leave_out_gpu(program.parent_path() / "no_gpu");
  spin_briefly();
  use_huge_pages();
  execv(program.c_str(), argv);
  throw RunError("{}: {}", program.string(), std::strerror(errno));
}

int run(int argc, char** argv) {
  try {
    if (const Answer* answer = find_answer(argc, argv)) return print(*answer);
    become_program(argv);
  } catch (const Interrupted& stop) {  // the reader has gone, and wants no message
    return 128 + stop.signal_number;
  } catch (const std::exception& error) {
    const std::string line = fmt::format("diptych: {}\n", printable(error.what()));
    std::fputs(line.c_str(), stderr);
    return 3;
  }
}

}  // namespace
}  // namespace diptych

int main(int argc, char** argv) {
  diptych::keep_standard_streams();
  return diptych::run(argc, argv);
}
