#include "apps/diptych/result_files.h"

#include <cerrno>
#include <cstdio>

#include <fmt/format.h>

#include "lib/base/atomic_file.h"
#include "lib/base/stdout.h"
#include "lib/request/output_names.h"

namespace diptych {

void write_text_file(const std::filesystem::path& path, std::string_view text) {
  AtomicFile file(path);
  file.write(text);
  file.write("\n");
  file.commit();
}

std::vector<std::uint8_t> encode_result(PictureFormat format, std::span<const Painted> together,
                                        std::size_t place, const Report& report) {
  const PictureEncoding encoding = {format, static_cast<int>(together[place].options->quality)};
  return encode_picture(together[place].result->rgb(),
                        picture_texts(together, place, report, encoding), encoding);
}

void write_result(const std::filesystem::path& path, std::span<const Painted> together,
                  std::size_t place, const Report& report) {
  const Result& result = *together[place].result;
  if (const auto* text = std::get_if<Text>(&result.media)) return write_text_file(path, text->text);
  const auto bytes = encode_result(format_of_name(path).value(), together, place, report);
  AtomicFile file(path);
  file.write(bytes.data(), bytes.size());
  file.commit();
}

void print_result(const Painted& painted, const Report& report) {
  if (const auto* text = std::get_if<Text>(&painted.result->media)) {
    fmt::print("{}\n", text->text);
  } else {
    const PictureFormat format = result_format(*painted.options);
    const auto bytes = encode_result(format, std::span(&painted, 1), 0, report);
    if (std::fwrite(bytes.data(), 1, bytes.size(), stdout) != bytes.size()) stdout_failed(errno);
  }
  flush_stdout();
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
