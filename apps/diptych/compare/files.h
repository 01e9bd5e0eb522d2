// Two files of one kind, held against each other.
#pragma once

#include <filesystem>

#include "apps/diptych/compare/report.h"

namespace diptych {

enum class CompareKind { picture, clip, trace, folder };

// By the content; of a trace by its name. A folder is a clip where it holds frame_00000.png. Throws
// InputError where nothing is there, or something else.
CompareKind kind_of(const std::filesystem::path& path);
// Of both. A folder beside a clip holds the frames of one. Throws InputError where they differ.
CompareKind common_kind(const std::filesystem::path& actual, const std::filesystem::path& expected);

// Both: what differs, and the files that options.difference and options.output name. Throw as
// read_image() and ClipReader, and as AtomicFile.
CompareReport compare_pictures(const std::filesystem::path& actual,
                               const std::filesystem::path& expected,
                               const CompareOptions& options);
CompareReport compare_clips(const std::filesystem::path& actual,
                            const std::filesystem::path& expected, const CompareOptions& options);
// What differs; the first divergence. Throws as read_trace().
CompareReport compare_trace_files(const std::filesystem::path& actual,
                                  const std::filesystem::path& expected,
                                  const CompareOptions& options);
// Throws InputError for what the flags of tolerances hold that is none, and for their case.json.
void require_tolerances(const CompareOptions& options);
// Whether two answers have the same words: of a .json those of its key "text". They must be equal
// for every gate. Throws InputError for a file that cannot be read, or is no answer.
CompareReport compare_texts(const std::filesystem::path& actual,
                            const std::filesystem::path& expected, const CompareOptions& options);

// A picture, a clip or a trace, by a kind other than folder. Throws Interrupted, too.
CompareReport compare_files(const std::filesystem::path& actual,
                            const std::filesystem::path& expected, CompareKind kind,
                            const CompareOptions& options);

}  // namespace diptych
