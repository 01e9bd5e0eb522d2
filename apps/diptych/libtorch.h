// Where the program's libtorch is.
#pragma once

#include <filesystem>

namespace diptych {

// Tells the dynamic linker, by LD_LIBRARY_PATH, where the program that runs next finds libtorch: in
// the folder that LIBTORCH_ROOT names; else, of an installation in `prefix`, in
// PREFIX/lib/diptych/torch or in the packages of a Python there (a virtual environment). In a build
// folder (`prefix` empty) the program knows where the build found it. Throws RunError.
void find_libtorch(const std::filesystem::path& prefix);

}  // namespace diptych
