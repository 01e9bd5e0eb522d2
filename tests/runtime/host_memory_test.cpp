#include "lib/runtime/host_memory.h"

#include <doctest/doctest.h>
#include <unistd.h>

#include "tests/tensor/support.h"

namespace diptych {
namespace {

void write(const test::Folder& root, std::string_view name, std::string_view text) {
  std::filesystem::create_directories((root / name).parent_path());
  write_file(root / name, text);
}

}  // namespace

TEST_CASE("available host memory: the system's, cut by the control group") {
  const test::Folder root;
  CHECK_FALSE(available_host_memory(root.path()));
  write(root, "proc/meminfo", "MemTotal:  9000 kB\nMemFree: 10 kB\nMemAvailable:    2000 kB\n");
  CHECK(available_host_memory(root.path()) == 2048000);
  SUBCASE("version 2") {
    write(root, "sys/fs/cgroup/memory.max", "max\n");
    write(root, "sys/fs/cgroup/memory.current", "900000\n");
    CHECK(available_host_memory(root.path()) == 2048000);
    write(root, "sys/fs/cgroup/memory.max", "1000000\n");
    CHECK(available_host_memory(root.path()) == 100000);
    write(root, "sys/fs/cgroup/memory.stat", "anon 5\ninactive_file 300\nactive_file 20\n");
    CHECK(available_host_memory(root.path()) == 100320);
    write(root, "sys/fs/cgroup/memory.current", "1100000\n");
    CHECK(available_host_memory(root.path()) == 0);
  }
  SUBCASE("version 1") {
    write(root, "sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
    write(root, "sys/fs/cgroup/memory/memory.usage_in_bytes", "900000\n");
    CHECK(available_host_memory(root.path()) == 2048000);
    write(root, "sys/fs/cgroup/memory/memory.limit_in_bytes", "1500000\n");
    CHECK(available_host_memory(root.path()) == 600000);
  }
}

TEST_CASE("available host memory of this machine is part of what it has") {
  const auto bytes = available_host_memory();
  REQUIRE(bytes.has_value());
  CHECK(*bytes > 1 << 20);
  CHECK(*bytes < std::int64_t{sysconf(_SC_PHYS_PAGES)} * sysconf(_SC_PAGESIZE));
}

}  // namespace diptych
