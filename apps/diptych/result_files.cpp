#include "apps/diptych/result_files.h"

#include <fmt/format.h>

#include "lib/base/atomic_file.h"
#include "lib/base/stdout.h"
#include "lib/media/png.h"

namespace diptych {

void write_text_file(const std::filesystem::path& path, std::string_view text) {
  AtomicFile file(path);
  file.write(text);
  file.write("\n");
  file.commit();
}

void write_result(const std::filesystem::path& path, std::span<const Painted> together,
                  std::size_t place, const Report& report) {
  const Result& result = *together[place].result;
  if (const auto* text = std::get_if<Text>(&result.media)) return write_text_file(path, text->text);
  write_png(path, result.rgb(), picture_texts(together, place, report));
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
