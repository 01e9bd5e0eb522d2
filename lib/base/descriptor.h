// An open file that closes itself.
#pragma once

#include <filesystem>

#include <fcntl.h>
#include <unistd.h>

namespace diptych {

struct Descriptor {
  // To read. O_NONBLOCK: opening a pipe without a writer must not wait; regular files ignore it.
  explicit Descriptor(const std::filesystem::path& path)
      : number(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)) {}
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  ~Descriptor() {
    if (number >= 0) close(number);
  }

  const int number;  // -1: errno says why
};

}  // namespace diptych
