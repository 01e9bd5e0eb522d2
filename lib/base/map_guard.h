// A mapped file that becomes shorter, or whose disk or server fails, ends a read of it with SIGBUS.
// Guarded ranges turn that into one line and an exit code.
#pragma once

#include <cstddef>
#include <filesystem>
#include <span>

namespace diptych {

// One line on stderr that names the file, and exit code 3, where a read of a guarded range fails.
// Every other SIGBUS ends the process as before.
void install_map_guard();

class MapGuard {
 public:
  // `bytes`: the map of the file, which must outlive this.
  MapGuard(const std::filesystem::path& path, std::span<const std::byte> bytes);
  ~MapGuard();
  MapGuard(const MapGuard&) = delete;
  MapGuard& operator=(const MapGuard&) = delete;

 private:
  struct Range& range_;
};

}  // namespace diptych
