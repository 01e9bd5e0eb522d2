#include "lib/media/video/libav/module.h"

extern "C" {
#include <libavutil/log.h>
}

#include "lib/media/video/libav/decoder.h"
#include "lib/media/video/libav/encoder.h"

extern "C" const diptych::libav::Module* diptych_libav_module() {
  using namespace diptych::libav;
  static const Module kModule{DIPTYCH_VERSION, open_decoder, open_encoder, missing_encoder};
  av_log_set_level(AV_LOG_QUIET);  // what goes wrong is told by errors
  return &kModule;
}
