// How a result that was made again differs from the one that is there, in a sentence; numbers of it
// go to `json`.
#pragma once

#include <filesystem>
#include <string>

#include <nlohmann/json.hpp>

#include "lib/media/image_read.h"

namespace diptych {

// The texts differ.
std::string text_difference(const std::string& then, const std::string& now,
                            nlohmann::ordered_json& json);
// The files differ. `same_painting`: not before they were encoded, which then loses something.
std::string picture_difference(const ReadPicture& then, const ReadPicture& now, bool same_painting,
                               nlohmann::ordered_json& json);
std::string clip_difference(const std::filesystem::path& then, const std::filesystem::path& now,
                            bool same_painting, nlohmann::ordered_json& json);

}  // namespace diptych
