// What requests of every family bring along: counts, files of noise, pictures.
#pragma once

#include <filesystem>
#include <span>

#include "lib/config/run_config.h"
#include "lib/media/image.h"
#include "lib/tensor/types.h"

namespace diptych {

// Throws InputError for what a request for several results cannot have, and where their seeds do
// not fit.
void check_counts(const RunConfig& config);

// The start noise of one result, of the first of these names that the file has: float32 of that
// shape. Throws InputError "--noise: ..." where it has none, for another shape, and for noise that
// is not finite.
Tensor read_noise(const std::filesystem::path& path, std::span<const char* const> names,
                  at::IntArrayRef shape);

// As read_image() and read_image_size(). Throw InputError "--image: ...".
Tensor read_input(const std::filesystem::path& path);
ImageSize read_input_size(const std::filesystem::path& path);

}  // namespace diptych
