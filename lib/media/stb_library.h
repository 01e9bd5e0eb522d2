// stb_image.h with the choices that its user and its implementation must share.
#pragma once

#define STBI_ONLY_BMP
#define STBI_ONLY_GIF
#define STBI_ONLY_TGA
#define STBI_ONLY_PSD
#define STBI_ONLY_PNM
#define STBI_NO_STDIO
#define STBI_NO_LINEAR
#define STBI_FAILURE_USERMSG           // texts for users
#define STBI_MAX_DIMENSIONS (1 << 16)  // kMaxImageSide

#include <stb_image.h>
