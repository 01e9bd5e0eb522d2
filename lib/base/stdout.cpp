#include "lib/base/stdout.h"

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>

#include <poll.h>
#include <unistd.h>

#include "lib/base/error.h"

namespace diptych {
namespace {

bool reader_has_gone() {
  pollfd stream{STDOUT_FILENO, POLLOUT, 0};
  return poll(&stream, 1, 0) == 1 && (stream.revents & POLLERR) != 0;
}

}  // namespace

void flush_stdout() {
  errno = 0;
  const bool flushed = std::fflush(stdout) == 0;
  const int error = flushed ? 0 : errno;
  if (!flushed || std::ferror(stdout) != 0) stdout_failed(error);
}

void stdout_failed(int error) {
  if (error == EPIPE || reader_has_gone()) throw Interrupted(SIGPIPE);
  if (error == 0) throw RunError("stdout: write failed");
  throw RunError("stdout: write failed: {}", std::strerror(error));
}

}  // namespace diptych
