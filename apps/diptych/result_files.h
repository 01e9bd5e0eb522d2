// The results of one request on their way to files.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "apps/diptych/record/result_record.h"
#include "lib/base/log.h"
#include "lib/config/fields.h"
#include "lib/session/job.h"
#include "lib/session/result.h"

namespace diptych {

// A text with a line end behind it. Throws as AtomicFile.
void write_text_file(const std::filesystem::path& path, std::string_view text);

// Prints a path that has been written, so that it is there when the next one is begun. Throws as
// flush_stdout().
void print_path(const std::filesystem::path& path);

// Throws InputError where the clips of the job cannot be written as its request asks for, so that
// none is made for nothing.
void require_encodable(const Options& options, const Job& job);

// A result as the bytes of a file, and what they are made of. Pictures and clips have their record
// with them, and texts where they are encoded so.
struct EncodedResult {
  std::vector<std::uint8_t> bytes;
  std::string pixels_hash;  // "" where the encoding keeps the pixels
};
// Not of a folder of frames. The frames of a clip are decoded here, and the contact sheet that the
// request asks for is written. Throws as encode_picture(), ClipEncoder, Clip::decode and
// AtomicFile.
EncodedResult encode_result(const MadeResult& made, const ResultEncoding& encoding,
                            Progress& progress);

// The same into a file or a folder. Returns the hash of the pixels. Throws as ClipWriter, too.
std::string write_encoded(const std::filesystem::path& path, const MadeResult& made,
                          const ResultEncoding& encoding, Progress& progress);
// The same in the format of its name.
void write_result(const std::filesystem::path& path, const MadeResult& made, Progress& progress);

// The same on stdout, in the format that its request asks for. Throws as flush_stdout().
void print_result(const MadeResult& made, Progress& progress);

// A text that goes to stdout while it is written.
class PrintedPieces {
 public:
  explicit PrintedPieces(Progress& progress) : progress_(progress) {}
  // Throws Interrupted, and as flush_stdout().
  void print(std::string_view piece);
  bool any() const { return any_; }
  void end();  // the line end behind the text

 private:
  Progress& progress_;
  bool any_ = false;
};

// Shows a plan (`label`: in front of it), and keeps it where options.think_output says.
void show_plan(const Options& options, std::string_view plan, std::string_view label, Log& log);

}  // namespace diptych
