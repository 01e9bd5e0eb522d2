#include "lib/base/map_guard.h"

#include <atomic>
#include <csignal>
#include <cstdint>
#include <mutex>
#include <string>

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include "lib/base/messages.h"

namespace diptych {

// What the handler reads is written before `used` becomes true. A range is never freed: the handler
// may be looking at it in another thread.
struct Range {
  std::atomic<bool> used = false;
  std::uintptr_t begin = 0;
  std::size_t size = 0;
  std::string path, shorter, unreadable;  // the lines are made before they are needed
  Range* next = nullptr;                  // fixed once the range is in the list
};

namespace {

constexpr int kRunFailed = 3;  // as apps/diptych/failure.h has it

std::atomic<Range*> first_range = nullptr;  // a signal handler can reach nothing else
std::mutex taking;

static_assert(std::atomic<Range*>::is_always_lock_free && std::atomic<bool>::is_always_lock_free);

const Range* range_of(std::uintptr_t address) {
  for (const Range* range = first_range.load(); range != nullptr; range = range->next) {
    if (range->used && address - range->begin < range->size) return range;
  }
  return nullptr;
}

// Calls what POSIX allows in a signal handler, and nothing else.
void say_and_exit(const Range& range) {
  struct stat now {};
  const bool shorter =
      stat(range.path.c_str(), &now) == 0 && static_cast<std::uint64_t>(now.st_size) < range.size;
  const std::string& line = shorter ? range.shorter : range.unreadable;
  [[maybe_unused]] const ssize_t told = write(STDERR_FILENO, line.data(), line.size());
  _exit(kRunFailed);
}

void on_bus_error(int signal_number, siginfo_t* info, void* /*context*/) {
  const bool by_process = info->si_code <= 0;  // kill() gives no address
  const auto address = reinterpret_cast<std::uintptr_t>(info->si_addr);
  if (const Range* range = by_process ? nullptr : range_of(address)) say_and_exit(*range);
  std::signal(signal_number, SIG_DFL);
  if (by_process) std::raise(signal_number);  // else the read fails again behind this
}

// A progress bar may stand on the terminal's line.
std::string error_line(const std::string& text) {
  return fmt::format("{}diptych: {}\n", isatty(STDERR_FILENO) != 0 ? "\r\x1b[2K" : "",
                     printable(text));
}

// One that is not used any more, or a new one at the front of the list.
Range& free_range() {
  for (Range* range = first_range.load(); range != nullptr; range = range->next) {
    if (!range->used) return *range;
  }
  auto* const added = new Range;
  added->next = first_range.load();
  first_range = added;
  return *added;
}

Range& take_range(const std::filesystem::path& path, std::span<const std::byte> bytes) {
  const std::lock_guard lock(taking);
  Range& range = free_range();
  range.begin = reinterpret_cast<std::uintptr_t>(bytes.data());
  range.size = bytes.size();
  range.path = path.string();
  range.shorter = error_line(fmt::format(
      "{}: became shorter while it was read; is it being downloaded or copied over?", range.path));
  range.unreadable = error_line(fmt::format(
      "{}: a part of it could not be read: its disk or file server failed", range.path));
  range.used = true;
  return range;
}

}  // namespace

void install_map_guard() {
  struct sigaction action {};
  action.sa_sigaction = on_bus_error;
  action.sa_flags = SA_SIGINFO;
  sigaction(SIGBUS, &action, nullptr);
}

MapGuard::MapGuard(const std::filesystem::path& path, std::span<const std::byte> bytes)
    : range_(take_range(path, bytes)) {}

MapGuard::~MapGuard() {
  range_.used = false;
}

}  // namespace diptych
