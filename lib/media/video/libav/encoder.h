// MP4 with H.264 and WebM with VP9.
#pragma once

#include <memory>
#include <string>

#include "lib/media/video/libav/module.h"

namespace diptych::libav {

std::unique_ptr<Encoder> open_encoder(const EncoderRequest& request);
std::string missing_encoder(ClipFormat format);

}  // namespace diptych::libav
