// What `inspect` says of a file of weights that Wan takes beside or instead of a folder.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace diptych {

// A transformer, a text encoder, an autoencoder or a LoRA file, a line each: naming, formats, sizes
// by the tensors. Empty for other files. Throws InputError for one that cannot be read.
std::vector<std::string> describe_wan_file(const std::filesystem::path& file);

}  // namespace diptych
