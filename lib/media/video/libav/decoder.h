// Frames of a file in the order they are shown.
#pragma once

#include <memory>

#include "lib/media/video/libav/module.h"

namespace diptych::libav {

std::unique_ptr<Decoder> open_decoder(const DecoderRequest& request);

}  // namespace diptych::libav
