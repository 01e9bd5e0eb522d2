// What a picture that diptych wrote says of itself.
#pragma once

#include <filesystem>
#include <string>

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include "lib/media/image_read.h"

namespace diptych::test {

// The record; ends the test case where the picture has none.
inline nlohmann::json record_of(const std::filesystem::path& picture) {
  for (const auto& [keyword, text] : read_picture(picture).image.text) {
    if (keyword == "diptych") return nlohmann::json::parse(text);
  }
  FAIL(picture.string(), " has no record");
  return {};
}

}  // namespace diptych::test
