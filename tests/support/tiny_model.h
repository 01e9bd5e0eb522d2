// The tiny checkpoint of the recorded cases: a model with random weights that runs anywhere.
#pragma once

#include <string>

namespace diptych::test {

inline const std::string kTinyCheckpoint = DIPTYCH_SOURCE_DIR "/tests/goldens/bagel/checkpoint";
// A stage config that runs it: 96 x 96 pixels, 20 timesteps, seed 42.
inline const std::string kTinyConfig = DIPTYCH_SOURCE_DIR "/tests/goldens/bagel/tiny.yaml";
// A picture to edit or to ask about, 90 x 90 pixels with alpha.
inline const std::string kPicture =
    DIPTYCH_SOURCE_DIR "/tests/goldens/bagel/cases/10_preprocess/img_90x90_rgba.png";

}  // namespace diptych::test
