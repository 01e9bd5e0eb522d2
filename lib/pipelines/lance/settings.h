// What only a request to Lance has.
#pragma once

#include <string>

#include "lib/base/choices.h"
#include "lib/pipelines/drafting/settings.h"
#include "lib/pipelines/lance/sizes.h"

namespace diptych {

// Whose generators draw the noise. automatic: the device's that the run is on.
enum class LanceNoiseSource { automatic, cpu, cuda };
template <>
inline constexpr std::array<std::string_view, 3> kChoiceNames<LanceNoiseSource> = {"auto", "cpu",
                                                                                   "cuda"};

struct LanceSettings : DraftSettings {
  LanceResolution resolution = LanceResolution::image_768res;  // of what is read
  LanceNoiseSource noise_source = LanceNoiseSource::automatic;
  std::string instruction;  // of an answer, "" = the official examples'
};

}  // namespace diptych
