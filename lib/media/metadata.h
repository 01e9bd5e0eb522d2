// Texts in pictures whose formats have no text chunks: EXIF for other programs, XMP for all of it.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lib/media/image.h"

namespace diptych {

// A TIFF structure (EXIF 2.32) with the text called "parameters" as UserComment in UTF-16, which is
// where the readers of the Stable Diffusion web UI look; empty where there is no such text.
std::vector<std::uint8_t> make_exif(const PictureTexts& texts);
// ImageDescription and UserComment under these names, where they are there and not empty. Damaged
// EXIF has none. With or without "Exif\0\0" in front.
PictureTexts exif_texts(std::span<const std::uint8_t> exif);

// An XMP packet with a property for each text, in the namespace of this program. Control characters
// that XML cannot hold become U+FFFD. Throws InputError for a text that is not UTF-8 and for a
// keyword that is no XML name.
std::string make_xmp(const PictureTexts& texts);
// The texts of such a packet, also where another program has written it anew with the same prefix.
PictureTexts xmp_texts(std::string_view xmp);

// A packet for JPEG, whose segments hold 64 KiB: it says that the properties stand in an extension
// of this name (32 hex digits), which goes into segments of its own.
std::string make_xmp_pointer(std::string_view extension_name);
// The name that such a packet holds, "" where it has no extension.
std::string xmp_extension_name(std::string_view xmp);

// `xmp` are the texts of this program, `exif` what other programs read: only what XMP does not say.
PictureTexts merge_texts(PictureTexts xmp, const PictureTexts& exif);

}  // namespace diptych
