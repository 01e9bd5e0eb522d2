// The one source that compiles stb_image. What a damaged file leaves unset is 0, so that the same
// file always gives the same pixels: memory comes from calloc, and the build sets
// -ftrivial-auto-var-init=zero for this file.
#include <cstdlib>
#include <cstring>

namespace {

// stb_image grows nothing that this program reads, so the old size is never asked for.
void* zeroed(std::size_t bytes) {
  return std::calloc(1, bytes);
}

}  // namespace

#define STBI_MALLOC(bytes) zeroed(bytes)
#define STBI_REALLOC(old, bytes) std::realloc(old, bytes)
#define STBI_FREE(memory) std::free(memory)
#define STB_IMAGE_IMPLEMENTATION
#include "lib/media/stb_library.h"
