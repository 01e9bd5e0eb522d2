// What a picture says about itself: everything needed to paint it again.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "lib/config/resolve.h"
#include "lib/pipelines/pipeline.h"

namespace diptych {

// PNG text chunks: "parameters" in the form of the Stable Diffusion web UI, and "diptych", a JSON
// object with schema "diptych.generate" and its version. The same run gives the same bytes: no
// times, and of paths only the last name.
std::vector<std::pair<std::string, std::string>> picture_texts(const Options& options,
                                                               const Picture& picture,
                                                               const Report& report);

// "2 pictures: loading 0.31s, denoise 1.20s; 12.10 it/s, peak 0.00 GiB, latent 3f..."
std::string summary_line(const Report& report);

}  // namespace diptych
