#include "apps/diptych/demo.h"

#include <system_error>

#include <fmt/format.h>

#include "lib/config/family_config.h"

namespace diptych {

namespace fs = std::filesystem;

std::vector<fs::path> find_demos() {
  const fs::path demo = fs::path("stage_configs") / "demo";
  std::error_code error;
  const fs::path binary = fs::read_symlink("/proc/self/exe", error);
  if (error) return {};
  for (fs::path folder = binary.parent_path();; folder = folder.parent_path()) {
    for (const fs::path& place : {folder / demo, folder / "share" / "diptych" / demo}) {
      std::vector<fs::path> found;
      for (const char* name : {"demo.yaml", "clips.yaml"}) {
        if (fs::exists(place / name, error)) found.push_back(place / name);
      }
      if (!found.empty()) return found;
    }
    if (folder == folder.parent_path()) return {};
  }
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
