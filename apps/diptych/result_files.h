// The results of one request on their way to files.
#pragma once

#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "apps/diptych/record/picture_record.h"
#include "lib/base/log.h"
#include "lib/config/fields.h"
#include "lib/media/picture_write.h"
#include "lib/session/result.h"

namespace diptych {

// A text with a line end behind it. Throws as AtomicFile.
void write_text_file(const std::filesystem::path& path, std::string_view text);

// Prints a path that has been written, so that it is there when the next one is begun. Throws as
// flush_stdout().
void print_path(const std::filesystem::path& path);

// A picture with its record, as the bytes of a file. Throws as encode_picture().
std::vector<std::uint8_t> encode_result(PictureFormat format, std::span<const Painted> together,
                                        std::size_t place, const Report& report);

// Writes what a run made of the request at `place` of those that ran together: a picture with its
// record in the format of its name, or a text. Throws as AtomicFile.
void write_result(const std::filesystem::path& path, std::span<const Painted> together,
                  std::size_t place, const Report& report);

// The same on stdout: a picture in the format that its request asks for, or a text with a line end.
// Throws as flush_stdout().
void print_result(const Painted& painted, const Report& report);

// Shows a plan (`label`: in front of it), and keeps it where options.think_output says.
void show_plan(const Options& options, std::string_view plan, std::string_view label, Log& log);

}  // namespace diptych
