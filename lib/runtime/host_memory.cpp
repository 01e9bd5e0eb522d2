#include "lib/runtime/host_memory.h"

#include <algorithm>
#include <array>
#include <fstream>
#include <string>

namespace diptych {
namespace {

namespace fs = std::filesystem;

// The number behind the first line's word `key` ("MemAvailable:", "active_file"), or the whole
// file's where the key is empty; nothing for a missing file or key, and for "max".
std::optional<std::int64_t> read_number(const fs::path& path, const std::string& key) {
  std::ifstream file(path);
  std::string word;
  while (!key.empty() && file >> word && word != key) {
  }
  std::int64_t value = 0;
  if (!(file >> value)) return std::nullopt;
  return value;
}

struct GroupFiles {
  const char *limit, *usage, *stat;
};
// Linux: Documentation/admin-guide/cgroup-v2.rst and cgroup-v1/memory.rst; in a container the group
// is mounted there itself.
constexpr std::array<GroupFiles, 2> kGroups = {
    {{"sys/fs/cgroup/memory.max", "sys/fs/cgroup/memory.current", "sys/fs/cgroup/memory.stat"},
     {"sys/fs/cgroup/memory/memory.limit_in_bytes", "sys/fs/cgroup/memory/memory.usage_in_bytes",
      "sys/fs/cgroup/memory/memory.stat"}}};

}  // namespace

std::optional<std::int64_t> available_host_memory(const fs::path& root) {
  const auto system = read_number(root / "proc/meminfo", "MemAvailable:");  // kB
  if (!system) return std::nullopt;
  std::int64_t available = *system * 1024;
  for (const GroupFiles& group : kGroups) {
    const auto limit = read_number(root / group.limit, ""),
               usage = read_number(root / group.usage, "");
    if (!limit || !usage) continue;
    const std::int64_t cache = read_number(root / group.stat, "active_file").value_or(0) +
                               read_number(root / group.stat, "inactive_file").value_or(0);
    available = std::min(available, std::max<std::int64_t>(*limit - *usage + cache, 0));
  }
  return available;
}

}  // namespace diptych
