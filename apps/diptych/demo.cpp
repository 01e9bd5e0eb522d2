#include "apps/diptych/demo.h"

#include <system_error>

#include <fmt/format.h>

#include "lib/config/family_config.h"

namespace diptych {

namespace fs = std::filesystem;

std::optional<fs::path> find_demo() {
  const fs::path demo = fs::path("stage_configs") / "demo" / "demo.yaml";
  std::error_code error;
  const fs::path binary = fs::read_symlink("/proc/self/exe", error);
  if (error) return std::nullopt;
  for (fs::path folder = binary.parent_path();; folder = folder.parent_path()) {
    for (const fs::path& place : {folder / demo, folder / "share" / "diptych" / demo}) {
      if (fs::exists(place, error)) return place;
    }
    if (folder == folder.parent_path()) break;
  }
  return std::nullopt;
}

std::string demo_notice(const RunConfig& run) {
  const FamilyConfig& family = *run.family;
  return fmt::format("no -c or -m given: {}", run.load_format == LoadFormat::dummy
                                                  ? family.dummy_demo_notice
                                                  : family.demo_notice);
}

void note_demo(const RunConfig& run, Log& log) {
  const bool random = run.load_format == LoadFormat::dummy;
  log.write(random ? LogLevel::info : LogLevel::debug, demo_notice(run));
}

}  // namespace diptych
