// Where the results of a run go.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lib/base/error.h"
#include "lib/config/fields.h"

namespace diptych {

// The extensions that names of results may have; the first is given to results without a name.
using Extensions = std::vector<std::string_view>;
// Those of a task's results: of the format, where one is asked for, else of any that is written.
Extensions result_extensions(MediaKind makes, std::optional<PictureFormat> format);

// The format of the pictures of a request: as asked for, else as the name of its output says, else
// PNG.
PictureFormat result_format(const Options& options);

// One name per result. "a.png" is itself for one result, else a-000.png, a-001.png, ...; a pattern
// such as "a-%03d.png" is filled in. Folders in front of the name stay. Touches no file. Throws
// InputError "<where>: ..." for another extension and a bad pattern.
std::vector<std::filesystem::path> output_names(const std::filesystem::path& name,
                                                std::int64_t count, const Extensions& extensions,
                                                const Subject& where);

// The paths of --output: as output_names(), and a folder gets 0000.png, 0001.png, ... Throws
// InputError, too, for a folder that is missing or not writable.
std::vector<std::filesystem::path> plan_outputs(const std::filesystem::path& output,
                                                std::int64_t count, const Extensions& extensions);

std::string numbered_name(std::size_t number);  // "0007"

// Opens and removes a temporary file beside it. Throws InputError "<where>: <path>: ..." where it
// cannot be written, WriteError as AtomicFile.
void require_writable(const std::filesystem::path& path, const Subject& where);

// Throws InputError "<where>: ..." unless the name stays below the folder it is relative to.
void check_relative_name(const std::filesystem::path& name, const Subject& where);

// Throws InputError "<where>: ..." unless the name ends in one of these, in any case.
void require_extension(const std::filesystem::path& name, const Extensions& extensions,
                       const Subject& where);
}  // namespace diptych
