// A tuning file: JSON with a table, the device it was measured on, and what it was measured with.
#pragma once

#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "lib/tuning/table.h"

namespace diptych {

struct TunedDevice {
  std::string name;          // "NVIDIA H200"
  int major = 0, minor = 0;  // compute capability
  bool operator==(const TunedDevice&) const = default;
};

struct TuningFile {
  TunedDevice device;
  std::map<std::string, std::string> versions;  // "torch" -> "2.11.0", of what was measured
  TuningTable table;
};

// "NVIDIA_H200.json"
std::string tuning_file_name(const TunedDevice& device);

// `name`: the file, for messages. Throws InputError "NAME: KEY: found ..., expected ..." for a text
// that is no such file, has another schema version, an unknown key, kernel or choice, a value that
// is impossible, or is of another device than `device` (nullopt: any will do).
TuningFile parse_tuning(std::string_view text, std::string_view name,
                        const std::optional<TunedDevice>& device);

std::string tuning_text(const TuningFile& file);  // as parse_tuning() reads it; no last newline

}  // namespace diptych
