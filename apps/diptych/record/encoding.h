// How a result becomes the bytes of a file, as its record says it.
#pragma once

#include <filesystem>
#include <string>
#include <variant>

#include <nlohmann/json.hpp>

#include "lib/config/fields.h"
#include "lib/media/picture_write.h"
#include "lib/media/video/clip_write.h"
#include "lib/session/result.h"

namespace diptych {

struct TextEncoding {
  bool with_record = false;  // as JSON; else the text alone
};
using ResultEncoding = std::variant<PictureEncoding, ClipEncoding, TextEncoding>;

ClipEncoding clip_encoding(const Options& options, ClipFormat format, FrameRate fps);

// In the format of its file's name; where it has none ("") in the one that its request asks for.
ResultEncoding encoding_of(const Options& options, const Media& media,
                           const std::filesystem::path& name = {});

// Whether the result is a text that is written with its record.
bool records_text(const Options& options, const std::filesystem::path& name = {});

bool keeps_pixels(const ResultEncoding& encoding);       // what is read back is what was written
bool is_folder(const ResultEncoding& encoding);          // of frames
ResultFormat format_of(const ResultEncoding& encoding);  // of a text with its record

// {"format": "jpg", "quality": 95}; null of a PNG, as of all pictures that say nothing, and of a
// text.
nlohmann::ordered_json encoding_json(const ResultEncoding& encoding);
// What encoding_json() made. `where`: "a.png: its record", for messages. Throws InputError, and
// what nlohmann throws for values of another type.
ResultEncoding read_picture_encoding(const nlohmann::ordered_json& json, const std::string& where);
ResultEncoding read_clip_encoding(const nlohmann::ordered_json& json, FrameRate fps,
                                  const std::string& where);

// What rate_json() (lib/config/fields.h) made. Throws InputError "<where>: fps: ...".
FrameRate read_rate(const nlohmann::ordered_json& json, const std::string& where);

}  // namespace diptych
