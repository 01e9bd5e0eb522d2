// The module with libav (libav/module.h), loaded when it is first asked for.
#pragma once

#include <string>
#include <string_view>

#include "lib/media/video/libav/module.h"

namespace diptych {

// Throws InputError "<name>: needs libav, ..." in a build without it, and where its libraries
// cannot be loaded on this machine, with the linker's reason.
const libav::Module& libav_module(std::string_view name);

// "" where libav_module() returns; else the reason.
std::string why_no_libav();

}  // namespace diptych
