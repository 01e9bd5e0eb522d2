// The end of a stream without a container, which states no size.
#pragma once

#include <string_view>

#include "lib/media/video/libav/module.h"

namespace diptych::libav {

// Whether this, as libav names it, is such a format, and its decoder tells where it conceals what
// is missing: those of HEVC and AV1 say nothing.
bool is_raw_stream(std::string_view format);

// Throws InputError where the last pictures of such a file cannot be decoded whole: it is cut off
// within one. Reads all packets, and decodes those from the last key frame but one on; nothing
// where no key frame is among the last 1000 pictures.
void require_whole_tail(const DecoderRequest& request);

}  // namespace diptych::libav
