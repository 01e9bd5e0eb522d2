#include "apps/diptych/result_files.h"

#include <fmt/format.h>

#include "lib/base/atomic_file.h"
#include "lib/base/stdout.h"

namespace diptych {

void write_text_file(const std::filesystem::path& path, std::string_view text) {
  AtomicFile file(path);
  file.write(text);
  file.write("\n");
  file.commit();
}

void print_path(const std::filesystem::path& path) {
  fmt::print("{}\n", path.string());
  flush_stdout();
}

void show_plan(const Options& options, std::string_view plan, std::string_view label, Log& log) {
  log.info("{}plan: {}", label, plan);
  if (!options.think_output.empty()) write_text_file(options.think_output, plan);
}

}  // namespace diptych
