// EXIF: the directories of a TIFF structure, and the one value that changes a picture, which way up
// it is. metadata.h has the texts.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "lib/tensor/types.h"

namespace diptych {

// TIFF 6.0, section 2, as far as EXIF needs it. What lies outside the bytes reads as 0.
struct Tiff {
  std::span<const std::uint8_t> bytes;
  bool big_endian = false;

  // With or without the "Exif\0\0" that JPEG puts in front. Nothing where it is no such structure.
  static std::optional<Tiff> open(std::span<const std::uint8_t> exif);

  std::uint32_t read(std::size_t at, std::size_t count) const;
  std::size_t first_directory() const { return read(4, 4); }
  // Of the entry with this tag (the last one, where there are several) in the directory that begins
  // at `directory`: a SHORT or LONG, or the bytes of a text. `other` or none where there is no such
  // entry of that kind.
  std::uint32_t number(std::size_t directory, std::uint16_t tag, std::uint32_t other = 0) const;
  std::span<const std::uint8_t> value(std::size_t directory, std::uint16_t tag) const;

 private:
  std::optional<std::size_t> entry(std::size_t directory, std::uint16_t tag) const;
};

// The orientation tag of the first directory: 1 (upright) to 8. `exif` is a TIFF structure, with or
// without the "Exif\0\0" that JPEG puts in front. 1 where the tag is absent, of another type or
// value, or where the structure is damaged: that is no reason to refuse the pixels.
int exif_orientation(std::span<const std::uint8_t> exif);

// Turns a stored picture upright, as Pillow's ImageOps.exif_transpose does.
// rgb: [height, width, 3]; 5 to 8 swap the sides. Contiguous; the same tensor for 1.
Tensor upright(const Tensor& rgb, int orientation);

}  // namespace diptych
