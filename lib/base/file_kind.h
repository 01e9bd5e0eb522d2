// What stands where a file is expected.
#pragma once

#include <sys/stat.h>

namespace diptych {

// For messages: "folder", "pipe", "socket" or "device"; of what is no regular file.
inline const char* file_kind(mode_t mode) {
  if (S_ISDIR(mode)) return "folder";
  if (S_ISFIFO(mode)) return "pipe";
  return S_ISSOCK(mode) ? "socket" : "device";
}

}  // namespace diptych
