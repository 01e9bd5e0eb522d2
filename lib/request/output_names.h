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
// Those of a task's results: of the format, where one of this kind is asked for, else of any that
// is written.
Extensions result_extensions(MediaKind makes, std::optional<ResultFormat> format);

// The format of the pictures, or clips, of a request: as asked for, else as the name of its output
// says, else PNG, or the first one that this build writes.
PictureFormat picture_format_of(const Options& options);
ClipFormat clip_format_of(const Options& options);

// What the files of its results can hold.
struct EncodingFacts {
  std::string_view name, library;
  bool built_in = false;
  std::int64_t max_side = 0;      // pixels
  double max_rate = 0;            // frames a second
  bool even_sides = false;        // both must be even
  bool has_quality = false;       // --quality has a meaning
  std::optional<CrfRange> crf{};  // absent: --crf has none
};
EncodingFacts encoding_facts(const Options& options);  // of a task that paints

// One name per result. "a.png" is itself for one result, else a-000.png, a-001.png, ...; a pattern
// such as "a-%03d.png" is filled in. Folders in front of the name stay. Touches no file. Throws
// InputError "<where>: ..." for another extension and a bad pattern.
std::vector<std::filesystem::path> output_names(const std::filesystem::path& name,
                                                std::int64_t count, const Extensions& extensions,
                                                const Subject& where);

// The paths of --output: as output_names(), and a folder gets 0000.png, 0001.png, ... Throws
// InputError, too, for a folder that is missing or not writable.
std::vector<std::filesystem::path> plan_outputs(const std::filesystem::path& name,
                                                std::int64_t count, const Extensions& extensions);

// The file of --trace. A folder (that is there below `base`, or whose name ends in / or has no
// extension) holds kTraceName; it is made where it is missing.
inline constexpr const char* kTraceName = "trace.safetensors";
std::filesystem::path trace_file(const std::filesystem::path& name,
                                 const std::filesystem::path& base = {});

std::string numbered_name(std::size_t number);  // "0007"

// Opens and removes a temporary file or folder beside it. Throws as AtomicFile and
// require_place_for_frames() where a result of this name, a file or a folder of frames, cannot be
// written.
void probe_output(const std::filesystem::path& path);
// The same, with "<where>: " in front of the message of an InputError.
void require_writable(const std::filesystem::path& path, const Subject& where);

// A folder that is not there yet could be made: else throws InputError.
void require_makable(const std::filesystem::path& folder, const Setting& setting);

// Throws InputError "<where>: ..." unless the name stays below the folder it is relative to.
void check_relative_name(const std::filesystem::path& name, const Subject& where);

// Throws InputError "<where>: ..." unless the name ends in one of these, in any case.
void require_extension(const std::filesystem::path& name, const Extensions& extensions,
                       const Subject& where);
}  // namespace diptych
