// What a clip says about itself. The texts are those of a picture (image.h): "diptych", the record,
// and "parameters".
//   MP4, WebM   the record is the tag "comment", the parameters are "description"
//   GIF         a comment extension for each, the record last
//   WebP        XMP and EXIF as of a still picture (metadata.h)
//   a folder    text chunks of every frame, with "frame" (its number) and "fps"
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "lib/base/frame_rate.h"
#include "lib/media/image.h"

namespace diptych {

using ClipTags = std::vector<std::pair<std::string, std::string>>;

// Tags "comment" and "description" of a file. Throws InputError for other texts, and for one that
// is not UTF-8 or holds NUL.
ClipTags clip_tags(const PictureTexts& texts);
// The texts of a file with these tags. A comment that is a record is called "diptych", and beside
// it the description "parameters"; any other tag keeps its name, in lower case.
PictureTexts texts_of_tags(const ClipTags& tags);

// The comments of a GIF with these texts, in order, and the texts of one with these comments: a
// record is "diptych", and another one beside it "parameters", else "comment". Throws as
// clip_tags().
std::vector<std::string> gif_comments(const PictureTexts& texts);
PictureTexts texts_of_comments(const std::vector<std::string>& comments);

// The frame rate of a record that is of a clip, by which a file of one frame is known as one.
std::optional<FrameRate> recorded_rate(const PictureTexts& texts);

}  // namespace diptych
