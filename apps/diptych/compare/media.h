// Two pictures or two clips, held against each other.
#pragma once

#include "apps/diptych/compare/report.h"

namespace diptych {

// Both: what differs, and the files that options.difference and options.output name. Throw as
// read_image() and ClipReader, and as AtomicFile.
CompareReport compare_pictures(const std::filesystem::path& actual,
                               const std::filesystem::path& expected,
                               const CompareOptions& options);
CompareReport compare_clips(const std::filesystem::path& actual,
                            const std::filesystem::path& expected, const CompareOptions& options);

}  // namespace diptych
