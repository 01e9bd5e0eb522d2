// What a request reads, so that nothing it writes takes its place: --replay, --resume and the next
// run would not find it again.
#pragma once

#include <filesystem>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "lib/base/error.h"
#include "lib/config/fields.h"
#include "lib/config/run_config.h"

namespace diptych {

inline constexpr std::string_view kMessagesFile = "the messages";

struct FileRead {
  std::filesystem::path file;
  // "an input picture", "an input video", "the file of a prompt", "the noise", "the calibration",
  // "a file of weights", kMessagesFile, ...
  std::string_view role;
};
// A file that will be written, and the setting that names it.
struct FileWritten {
  std::filesystem::path file;
  Setting setting;
};

// The files that the request names, the model's aside.
std::vector<FileRead> files_read(const RunConfig& run);
// Those of its enhancer, too.
std::vector<FileRead> files_read(const Options& options);

inline constexpr std::string_view kModelFile = "a file of the model";
// What `file`, under whatever name, is to the request: its role, or kModelFile (weights, JSON and
// merges.txt in its folder, but for the calibration: calibrate puts it there anew); nothing where
// it is not there or not read.
std::optional<std::string_view> role_of_file(const RunConfig& run,
                                             const std::filesystem::path& file);
// kModelFile also of one in the folders of its enhancer.
std::optional<std::string_view> role_of_file(const Options& options,
                                             const std::filesystem::path& file);
// Throws InputError "<subject>: <file>: is an input picture; expected another name"; an empty path
// is no file. `file` is one that will be written.
void check_not_an_input(const RunConfig& run, const std::filesystem::path& file,
                        const Subject& subject);
void check_not_an_input(const Options& options, const std::filesystem::path& file,
                        const Subject& subject);
void check_not_inputs(const Options& options, std::span<const FileWritten> files);

}  // namespace diptych
