// What `diptych inspect` says of pictures, clips and texts with a record, and what it shares with
// its other half.
#pragma once

#include <cstddef>
#include <filesystem>
#include <string>
#include <string_view>

#include <nlohmann/json.hpp>

namespace diptych {

inline constexpr const char* kEveryEntry = "*";

struct MediaToInspect {
  std::filesystem::path path;
  std::string filter = kEveryEntry;  // a glob for the names of text entries
  bool json = false;
};

// Print it and return the exit code. Throw as read_picture(), ClipReader and
// read_recorded_text().
int inspect_picture(const MediaToInspect& media);
int inspect_clip(const MediaToInspect& media);
int inspect_recorded_text(const MediaToInspect& media);

// Throws InputError where a filter other than kEveryEntry has left nothing of the `things` in the
// file: that is a slip.
void require_match(const std::filesystem::path& path, const std::string& filter,
                   std::size_t matches, std::string_view things);

std::string printable_lines(std::string_view text);  // a text entry may have lines
std::string dump(const nlohmann::ordered_json& json);

}  // namespace diptych
