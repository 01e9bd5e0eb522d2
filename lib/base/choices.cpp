#include "lib/base/choices.h"

#include <charconv>

#include <fmt/format.h>

namespace diptych {

std::optional<DeviceChoice> parse_device(std::string_view name) {
  using Kind = DeviceChoice::Kind;
  if (name == "auto") return DeviceChoice{Kind::automatic};
  if (name == "cpu") return DeviceChoice{Kind::cpu};
  if (name == "cuda") return DeviceChoice{Kind::cuda};
  constexpr std::string_view kCuda = "cuda:";
  constexpr std::size_t kMostDigits = 3;
  if (!name.starts_with(kCuda)) return std::nullopt;
  const std::string_view digits = name.substr(kCuda.size());
  const auto is_digit = [](char c) { return c >= '0' && c <= '9'; };
  if (digits.empty() || digits.size() > kMostDigits || !std::ranges::all_of(digits, is_digit))
    return std::nullopt;
  int index = 0;
  std::from_chars(digits.data(), digits.data() + digits.size(), index);
  return DeviceChoice{Kind::numbered, index};
}

std::string device_name(const DeviceChoice& device) {
  switch (device.kind) {
    case DeviceChoice::Kind::automatic:
      return "auto";
    case DeviceChoice::Kind::cpu:
      return "cpu";
    case DeviceChoice::Kind::cuda:
      return "cuda";
    case DeviceChoice::Kind::numbered:
      break;
  }
  return fmt::format("cuda:{}", device.index);
}

}  // namespace diptych
